#!/usr/bin/perl

# HTTP/3: a QUIC connection that is closed, or idles out, would end its requests
# on the spot. An owner's is carried through all the same, as docs/requests.md, has it.

use lib 't/lib';
use Idempotency;

my $client = (grep -x, map { "$_/gtlsclient" } split /:/, $ENV{PATH})[0];
my $nginx = $ENV{TEST_NGINX_BINARY} || 'nginx';

plan(skip_all => 'no client for HTTP/3 here (ngtcp2-client)') unless $client;
plan(skip_all => 'this nginx has no HTTP/3')
    unless `$nginx -V 2>&1` =~ /--with-http_v3_module/;

my $pki = certificate();

my $n = nginx(files => { body => 'item=book' }, http => <<"EOC", server => <<'EOC');
    log_format result '\$request_uri \$status \$idempotency_status \$http3';
    access_log \$TEST_NGINX_ROOT/logs/access.log result;
    ssl_certificate $pki/cert.pem;
    ssl_certificate_key $pki/key.pem;
EOC
    listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1 quic;

    location / {
        idempotency zone=z;
        idempotency_key $arg_id;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location = /now { return 200 "now\n"; }
EOC

my @stays = '--exit-on-all-streams-close';


# Starts a client that posts to these, one after the other until the log or the
# backend has what is waited for: a client gives up when its handshake takes
# longer than it may be idle. Returns the one that is left, if any.

sub client_until {
    my ($there, $option, @uri) = @_;
    my $pid;

    ok(until_true {
        my $is = $there->();

        $pid = undef if $pid && waitpid($pid, 1) == $pid;
        $pid //= child(sub {
            open STDOUT, '>>', $n->root . '/client.out';
            open STDERR, '>&', \*STDOUT;
            exec $client, '--quiet', '--no-quic-dump', '-m', 'POST', '-d',
                 $n->root . '/body', $option, '127.0.0.1', $n->port(1),
                 map { 'https://localhost:' . $n->port(1) . $_ } @uri;
        }) if !$is;

        $is;
    }, "@uri, $option") or diag $n->slurp('client.out'), $n->access_log;

    return $pid;
}

sub logged { my ($re) = @_; return sub { $n->access_log =~ $re } }


# --- one that stays ---------------------------------------------------------

client_until(logged(qr/id=stays\S* 200 $_ h3/), @stays,
             '/?id=stays&size=200000') for qw(NEW REPLAYED);
is(executions('stays'), 1, '... executed once');


# --- those that go ----------------------------------------------------------

for (['closed', '--exit-on-first-stream-close', '/now'],
     ['idle for too long', '--timeout=1s'],
     ['killed, and then idle', '--timeout=1s'])
{
    my ($what, $option, @more) = @$_;

    for my $gate (1, 'body') {
        my $id = "$what-$gate" =~ s/\W+/-/gr;
        my $uri = "/?id=$id&gate=$gate&size=200000";

        my $pid = client_until(sub { executions($id) }, $option, $uri, @more);
        held($id);
        kill KILL => $pid if $pid && $what =~ /killed/;

        ok($n->wait_log(qr/the client disconnected, its request goes on.*$id/),
           "connection $what, gate $gate: its request goes on") or diag $n->log;

        go($id);

        ok(until_true { $n->access_log =~ m{id=$id\S* 200 NEW h3} },
           '... to its end') or diag $n->access_log;

        client_until(logged(qr/id=$id\S* 200 REPLAYED h3/), @stays, $uri);
        is(executions($id), 1, '... executed once');
    }
}


# One that only waits is a client as any other.

{
    my $uri = '/?id=waits&gate=1';

    client_until(sub { executions('waits') }, '--timeout=600s', $uri);
    client_until(logged(qr/id=waits\S* (?:499|000)/), '--timeout=1s', $uri);
    go('waits');
    ok(until_true { $n->access_log =~ m{id=waits\S* 200 NEW h3} },
       '... the owner is not concerned');
    is(executions('waits'), 1, '... executed once');
}

done_testing();
