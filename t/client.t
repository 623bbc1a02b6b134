#!/usr/bin/perl

# SPEC, "What a request gets" 6: the client may leave, the operation goes on. It
# is carried through and recorded, and a retry finds all of it.

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;
use Stress;

use IO::Socket::INET;
use Socket qw(SOL_SOCKET SO_RCVBUF pack_sockaddr_in inet_aton);

my $size = 200000;

# Where requests go, by whose means. The relays tell connections apart, and
# one of them speaks what grpc_pass does.

my %pass = (
    proxy   => 'proxy_pass http://relay; proxy_http_version 1.1;
                proxy_set_header Connection "";',
    fastcgi => 'include $TEST_NGINX_ROOT/fcgi.conf;
                fastcgi_pass $TEST_NGINX_FASTCGI;',
    uwsgi   => 'include $TEST_NGINX_ROOT/uwsgi.conf;
                uwsgi_pass $TEST_NGINX_UWSGI;',
    scgi    => 'include $TEST_NGINX_ROOT/scgi.conf;
                scgi_pass $TEST_NGINX_SCGI;',
    grpc    => 'grpc_pass grpc://grpc_relay;',
);

my @protocols = grep has_directive("${_}_ignore_client_abort off;") || $_ eq 'grpc',
                sort keys %pass;

my @params = ('QUERY_STRING $query_string', 'REQUEST_METHOD $request_method',
              'REQUEST_URI $request_uri', 'CONTENT_LENGTH $content_length');

my $locations = join "\n", map {
    my $p = $_;

    # what is asked for by name has no say here
    my $abort = $p eq 'grpc' ? '' : "${p}_ignore_client_abort off;";

    ($p eq 'grpc' ? '' : "location /$p/off { ${p}_buffering off; $abort $pass{$p} }"),
    "location /$p/on { $abort $pass{$p} }"
} @protocols;

my $protected = <<'EOC' . $locations;
    idempotency zone=z;
    idempotency_max_response 4m;
    idempotency_wait_timeout 10m;
EOC

sub start_nginx {
    my ($listen, $more, $servers) = @_;

    my %files = map {
        my $p = $_;
        ({ fastcgi => 'fcgi' }->{$p} // $p) . '.conf'
            => join '', map { "${p}_param $_;\n" } @params
    } qw(fastcgi uwsgi scgi);

    return nginx(zone => 0, files => \%files, http => <<'EOC'
        idempotency_zone zone=z:64m;
        log_format result '$request_uri $status $idempotency_status';
        access_log $TEST_NGINX_ROOT/logs/access.log result;

        upstream relay { server 127.0.0.1:$TEST_NGINX_RAND_PORT_2; keepalive 8; }
        upstream grpc_relay { server 127.0.0.1:$TEST_NGINX_RAND_PORT_3;
                              keepalive 8; }
        server {
            listen 127.0.0.1:$TEST_NGINX_RAND_PORT_2;
            listen 127.0.0.1:$TEST_NGINX_RAND_PORT_3 http2;
            access_log off;
            add_header X-Conn $connection always;
            location / { proxy_pass http://$TEST_NGINX_BACKEND;
                         proxy_http_version 1.1;
                         proxy_set_header Connection ""; }
        }
EOC
        . crowd("$more\n$protected", $listen) . $servers);
}

my $n = start_nginx('', '', '');


# --- ways to leave ----------------------------------------------------------

my %leave = (
    'HTTP/1.1, FIN'         => sub { $_[0]->close },
    'HTTP/1.1, RST'         => sub { $_[0]->reset },
    'HTTP/2, RST_STREAM'    => sub { $_[0]->reset_stream($_[1]) },
    'HTTP/2, FIN'           => sub { $_[0]->close },
    'HTTP/2, RST'           => sub { $_[0]->reset },
);

# Starts a request; returns what a way to leave takes.

sub begin {
    my ($how, $uri, @o) = @_;

    return $n->start('POST', $uri, @o) if $how =~ m{^HTTP/1};

    my $h = h2($n);

    return ($h, $h->request('POST', $uri, @o));
}


sub some_body {
    my ($c, $s) = @_;

    return $c->until_stream($s, sub { length $_[0]{body} }) if defined $s;

    return $c->want(sub { $c->{buf} =~ /\r\n\r\n./s ? 1 : undef });
}


my $count = 0;

for my $p (@protocols) {
    for my $at (grep { !($p eq 'grpc' && $_ eq 'off') } qw(on off)) {
        for my $how (sort keys %leave) {
            for my $when ('before the header', 'in mid body') {
                my $name = "$p, buffering $at, $how $when";
                my $id = 'gone' . ++$count;
                my $gate = $when =~ /body/ ? 'body' : 1;
                my $uri = "/$p/$at?id=$id&size=$size&gate=$gate";
                my @o = (key => $id, body => 'b');

                my @c = begin($how, $uri, @o);
                held($id);
                some_body(@c) if $gate eq 'body';
                my $waits = $n->start('POST', $uri, @o);
                $leave{$how}->(@c);
                go($id);

                my @r = ($waits->response, $n->post($uri, @o));

                is_deeply([ map { "$_->{status} " . length $_->{body} } @r ],
                          [ ("200 $size") x 2 ], $name) or diag $n->log;
                is(scalar(grep { $_->{body} eq pattern($size, 1)
                                 && $_->replayed } @r),
                   2, '... all of it, recorded');
                is(executions($id), 1, '... executed once');

                $c[0]->close if $how =~ /STREAM/;
                $waits->close;

                next unless $p =~ /^(?:proxy|grpc)$/;

                my $next = $n->post("/$p/$at?id=$id", key => "$id-next");
                is($next->header('X-Conn'), $r[1]->header('X-Conn'),
                   "... the upstream's connection is used again");
            }
        }
    }
}


# A client that leaves without a body to wait for, and one that is a waiter
# when the owner leaves, are the same as any; a response in chunks or of
# unknown length has no length to be whole by.

for my $te (qw(chunked close)) {
    for my $how (sort keys %leave) {
        my $id = "$te-" . ++$count;
        my $uri = "/proxy/on?id=$id&size=$size&gate=body&te=$te";
        my @o = (key => $id, body => 'b');

        my @c = begin($how, $uri, @o);
        held($id);
        some_body(@c);
        $leave{$how}->(@c);
        go($id);

        my $r = $n->post($uri, @o);
        is("$r->{status} " . ($r->{body} eq pattern($size, 1)), '200 1',
           "$te, $how in mid body: recorded whole");
        is(executions($id), 1, '... executed once');
        $c[0]->close if $how =~ /STREAM/;
    }
}


# What breaks off behind the client's back is no whole response.

{
    my $uri = "/proxy/on?id=cut&size=$size&gate=1&cut=1000";
    my $c = $n->start('POST', $uri, key => 'cut', body => 'b');
    held('cut');
    $c->close;
    go('cut');

    my $r = $n->post($uri, key => 'cut', body => 'b');
    is($r->{status} . ' ' . problem($r), '409 not_kept',
       'the client gone, the response broken off: not kept');

    $uri = '/proxy/on?id=none&gate=1&rst=1';
    $c = $n->start('POST', $uri, key => 'none', body => 'b');
    held('none');
    $c->close;
    go('none');
    $r = $n->post($uri, key => 'none', body => 'b');
    is($r->{status}, 502, 'the client gone, then the upstream: in doubt');
    ok($r->replayed, '... replayed');
    is(executions($_), 1, '... executed once') for qw(cut none);
}


# --- during the upload ------------------------------------------------------

# Nothing was asked for yet, so nothing is bound.

for my $p (@protocols) {
    for my $how ('FIN', 'RST', 'chunked, FIN', 'HTTP/2, RST_STREAM',
                 'HTTP/2, FIN')
    {
        my $id = 'upload' . ++$count;
        my $uri = "/$p/on?id=$id";
        my @o = (key => $id, body => 'whole');

        if ($how =~ /HTTP\/2/) {
            my $h = h2($n);
            my $s = $h->request('POST', $uri, key => $id, body => 'who',
                                open => 1);
            $how =~ /STREAM/ ? $h->reset_stream($s) : $h->close;
            ok(until_true { $n->access_log =~ /id=$id 4\d\d/ },
               "$p, $how: gone during the upload");
            $h->close if $how =~ /STREAM/;

        } else {
            my $c = $n->connect;
            my $m = message('POST', $uri, @o, $how =~ /chunked/
                                              ? (chunked => [ 'whole' ]) : ());
            $c->send(substr $m, 0, length($m) - 4);
            $how =~ /RST/ ? $c->reset : $c->close;
            ok(until_true { $n->access_log =~ /id=$id 4\d\d/ },
               "$p, $how: gone during the upload");
        }

        is(executions($id), 0, '... not executed');
        is(status_of($n->post($uri, @o)), '200 NEW', '... nothing was bound');
        is(executions($id), 1, '... and now it is executed');
    }
}

$n->stop;


# --- stalled ----------------------------------------------------------------

# It reads nothing, and the kernel takes little for it. Who asks again reads, and
# has its time.

my $late = 'location /late { send_timeout 10m;
                             proxy_pass http://$TEST_NGINX_BACKEND; }';

$n = start_nginx('sndbuf=8k rcvbuf=8k', "send_timeout 300ms;\n$late",
                 <<'EOC' . "$late\n$protected}");
    server {
        listen 127.0.0.1:$TEST_NGINX_RAND_PORT_4;
        server_name localhost;
        add_header X-Status $idempotency_status always;
EOC

my @patient = (port => $n->port(4));

sub stalled_client {
    my ($port) = @_;

    socket(my $s, Socket::PF_INET(), Socket::SOCK_STREAM(), 0) or die $!;
    setsockopt $s, SOL_SOCKET, SO_RCVBUF, 4096;
    CORE::connect($s, pack_sockaddr_in($port, inet_aton('127.0.0.1'))) or die $!;

    return $s;
}

for my $p (@protocols) {
    for my $at (grep { !($p eq 'grpc' && $_ eq 'off') } qw(on off)) {
        for my $how ('HTTP/1.1', 'HTTP/2') {
            my $name = "$p, buffering $at, $how stalled";
            my $id = 'stall' . ++$count;
            my $long = 1500000;
            my $uri = "/$p/$at?id=$id&size=$long";
            my @o = (key => $id, body => 'b');
            my ($s, $h);

            if ($how eq 'HTTP/1.1') {
                $s = stalled_client($n->port(0));
                syswrite $s, message('POST', $uri, @o);

            } else {
                $h = h2($n, window => 10000);
                $h->request('POST', $uri, @o);
            }

            ok(until_true { executions($id) }, "$name: it is executed");

            my $r = $n->post($uri, @o, @patient);
            is(status_of($r) =~ /^200 (?:WAITED|REPLAYED)$/
               ? 'recorded' : status_of($r) . ' ' . problem($r),
               'recorded', "$name: carried through");
            ok($r->{body} eq pattern($long, 1), '... all of it');
            is(executions($id), 1, '... executed once');

            close $s if $s;
            $h->close if $h;
        }
    }
}


# What is known is known, however long such a client takes: the whole response,
# if the upstream is read ahead of it, or that there is none.

for (['whole', 'size=1500000', '200', qr/WAITED|REPLAYED/],
     ['broken off', 'size=1500000&cut=1400000', '409', qr/NOT_KEPT/])
{
    my ($what, $more, $status, $said) = @$_;
    my $id = 'late' . ++$count;
    my $uri = "/late?id=$id&$more";
    my $s = stalled_client($n->port(0));

    syswrite $s, message('POST', $uri, key => $id, body => 'b');
    ok(until_true { executions($id) }, "stalled, the response $what");

    my $r = $n->post($uri, key => $id, body => 'b', @patient);
    like(status_of($r), qr/^$status $said/, '... is recorded meanwhile');
    is(executions($id), 1, '... executed once');
    close $s;
}

done_testing();
