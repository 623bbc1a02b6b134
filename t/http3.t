#!/usr/bin/perl

# HTTP/3: a QUIC connection that is closed, or idles out, would end its requests
# on the spot. An owner's is carried through all the same, as README, "What a
# request gets", has it.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;
use Stress;

use POSIX qw(dup2);

my $client = (grep -x, map { "$_/gtlsclient" } split /:/, $ENV{PATH})[0];

my $nginx = $ENV{TEST_NGINX_BINARY} || 'nginx';

plan(skip_all => 'no client for HTTP/3 here (ngtcp2-client)') unless $client;
plan(skip_all => 'this nginx has no HTTP/3')
    unless `$nginx -V 2>&1` =~ /--with-http_v3_module/;

my $dir = File::Temp->newdir(TMPDIR => 1);

system('openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt',
       'ec_paramgen_curve:prime256v1', '-nodes', '-days', '2', '-subj',
       '/CN=localhost', '-batch', '-keyout', "$dir/key", '-out', "$dir/cert") == 0
    or die 'no certificate';

sub slurp { local (@ARGV, $/) = @_; scalar <> }

my $n = nginx(zone => 0, workers => 1,
              files => { cert => slurp("$dir/cert"), key => slurp("$dir/key") },
              http => <<'EOC');
    idempotency_zone zone=z:16m;
    log_format result '$request_uri $status $idempotency_status $http3';
    access_log $TEST_NGINX_ROOT/logs/access.log result;
    ssl_certificate $TEST_NGINX_ROOT/cert;
    ssl_certificate_key $TEST_NGINX_ROOT/key;

    server {
        listen 127.0.0.1:$TEST_NGINX_PORT;
        listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1 quic;
        server_name localhost;
        add_header X-Status $idempotency_status always;

        location / {
            idempotency zone=z;
            idempotency_key $arg_id;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location = /now { return 200 "now\n"; }
    }
EOC

write_file("$dir/body", 'item=book');


# Starts a client that posts to these, and returns its pid.

sub post3 {
    my ($o, @uri) = @_;

    my $pid = fork // die "fork: $!";
    return $pid if $pid;

    open my $out, '>>', "$dir/out" or die $!;
    dup2(fileno $out, $_) for 1, 2;

    exec $client, '--quiet', '--no-quic-dump', '-m', 'POST', '-d', "$dir/body",
         @$o, '127.0.0.1', $n->port(1),
         map { 'https://localhost:' . $n->port(1) . $_ } @uri;
    exit 127;
}

sub write_file {
    my ($name, $bytes) = @_;

    open my $f, '>', $name or die $!;
    print $f $bytes;
    close $f or die $!;
}


# --- one that stays ---------------------------------------------------------

waitpid post3([ '--exit-on-all-streams-close' ], '/?id=stays&size=200000'), 0;

ok(until_true { $n->access_log =~ m{id=stays\S* 200 NEW h3} },
   'a request over HTTP/3') or diag slurp("$dir/out");
is(executions('stays'), 1, '... executed');

waitpid post3([ '--exit-on-all-streams-close' ], '/?id=stays&size=200000'), 0;

ok(until_true { $n->access_log =~ m{id=stays\S* 200 REPLAYED h3} },
   '... replayed over HTTP/3');
is(executions('stays'), 1, '... executed once');


# --- those that go ----------------------------------------------------------

for (['closed', [ '--exit-on-first-stream-close' ], [ '/now' ]],
     ['idle for too long', [ '--timeout=1s' ], []],
     ['killed, and then idle', [ '--timeout=1s' ], [], 'kill'])
{
    my ($what, $o, $more, $kill) = @$_;

    for my $gate (1, 'body') {
        my $id = "$what-$gate" =~ s/\W+/-/gr;
        my $uri = "/?id=$id&gate=$gate&size=200000";

        my $pid = post3($o, $uri, @$more);
        held($id);
        kill KILL => $pid if $kill;
        waitpid $pid, 0;

        ok($n->wait_log(qr/the client has gone, its request is carried.*$id/),
           "connection $what, gate $gate: its request goes on") or diag $n->log;

        go($id);

        ok(until_true { $n->access_log =~ m{id=$id\S* 200 NEW h3} },
           '... to its end') or diag $n->access_log;
        is(executions($id), 1, '... executed once');

        waitpid post3([ '--exit-on-all-streams-close' ], $uri), 0;
        ok(until_true { $n->access_log =~ m{id=$id\S* 200 REPLAYED h3} },
           '... and the retry has its response') or diag $n->access_log;
        is(executions($id), 1, '... executed once');
    }
}


# One that only waits is a client as any other.

{
    my $uri = '/?id=waits&gate=1';
    my $owner = post3([ '--timeout=20s' ], $uri);
    held('waits');

    my $waiter = post3([ '--timeout=1s' ], $uri);
    waitpid $waiter, 0;
    ok(until_true { $n->access_log =~ m{id=waits\S* (?:499|000)} },
       'one that waits may leave') or diag $n->access_log;

    go('waits');
    ok(until_true { $n->access_log =~ m{id=waits\S* 200 NEW h3} },
       '... the owner is not concerned');
    kill TERM => $owner;
    waitpid $owner, 0;
    is(executions('waits'), 1, '... executed once');
}

done_testing();
