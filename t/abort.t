#!/usr/bin/perl

# docs/requests.md: who owns a token is carried through when its
# client leaves, wherever it was sent on to, and whoever owns none is not. What
# can't be kept is told at once, and read on for some time only: for a second
# in this build, which has the module's fault points.

use lib 't/lib';
use Faults;
use Idempotency;
use Stress;

# an upstream that says 101, and then everything twice
my $echo = IO::Socket::INET->new(Listen => 5, LocalAddr => '127.0.0.1') or die $!;
my $echoes = $echo->sockport;

child(sub {
    while (my $c = $echo->accept) {
        my $n = 0;

        while ($n = sysread $c, my $bytes, 1024) {
            syswrite $c, $bytes =~ /^(?:POST|PUT) /
                         ? "HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\n"
                           . "Connection: Upgrade\r\n\r\n" : $bytes x 2;
        }
    }
});

my $n = nginx(http => <<'EOC' . crowd(<<'EOC2' =~ s/ECHO/127.0.0.1:$echoes/gr));
    log_format result '$request_uri $status $idempotency_status';
    access_log $TEST_NGINX_ROOT/logs/access.log result;
    idempotency zone=z;
EOC
    idempotency_max_response 100k;

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /unbuffered { proxy_buffering off;
                           proxy_pass http://$TEST_NGINX_BACKEND; }
    location /kept { proxy_ignore_client_abort on;
                     proxy_pass http://$TEST_NGINX_BACKEND; }
    location /elsewhere { idempotency off;
                          proxy_pass http://$TEST_NGINX_BACKEND; }
    location /falls { error_page 502 = @fallback;
                      proxy_pass http://$TEST_NGINX_DEAD; }
    location @fallback { idempotency off; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /mirrored { mirror /part; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /includes { ssi on; ssi_types *; proxy_buffering off;
                         proxy_pass http://$TEST_NGINX_BACKEND; }
    location /part { internal; log_subrequest on;
                     proxy_pass http://$TEST_NGINX_BACKEND/?id=$arg_id-part&delay=500; }
    location /part_on { internal; log_subrequest on;
                        proxy_ignore_client_abort on;
                        proxy_pass http://$TEST_NGINX_BACKEND/?id=$arg_id-part&delay=500; }
    location /intercepted { error_page 422 = @says; proxy_intercept_errors on;
                            proxy_pass http://$TEST_NGINX_BACKEND; }
    location @says { return 422 "says"; }
    location /tunnel { proxy_http_version 1.1;
                       proxy_set_header Upgrade $http_upgrade;
                       proxy_set_header Connection upgrade;
                       proxy_pass http://ECHO; }
    location /tunnel/2xx { idempotency_keep 2xx;
                           proxy_http_version 1.1;
                           proxy_set_header Upgrade $http_upgrade;
                           proxy_set_header Connection upgrade;
                           proxy_pass http://ECHO; }
    location /off { idempotency_bypass 1; proxy_pass http://$TEST_NGINX_BACKEND; }
EOC2

my $count = 0;


# Sends a request, waits until the upstream holds it, and then has its client
# leave. Returns the request's id and what it takes to send it again.

sub leaves {
    my ($how, $uri, $before, $method, @o) = @_;

    my $id = 'gone' . ++$count;
    my @m = ($method // 'POST', $uri =~ s/ID/$id/gr,
             @o ? @o : (key => $id, body => 'b'));
    my $c = $how eq 'HTTP/2' ? h2($n) : $n->start(@m);
    my $s = $how eq 'HTTP/2' ? $c->request(@m) : undef;

    held($id);
    $before->($id, @m) if $before;
    $s ? $c->reset_stream($s) : $c->close;

    # its connection stays, if it was a stream that ended
    return ($id, [@m], $c);
}

# A retry, when the upstream goes on, gets all that the owner would have got.

sub carried {
    my ($name, $is, $id, $m) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my $waits = $n->start(@$m);
    go($id);
    my $r = $waits->response;

    is(join(' ', told($r) =~ s/WAITED/REPLAYED/r, executions($id),
                 $is =~ /says/ ? $r->{body} : ()), $is, $name);
}


# --- requests that own nothing ----------------------------------------------

# what, what nginx does when their client leaves, and the request

for (['a GET', 499, '/', 'GET', body => ''],
     ['a POST without a key', 499, '/', 'POST', body => 'b'],
     ['a bypass', 499, '/off', 'POST', key => 'k1', body => 'b'],
     ['a GET, proxy_ignore_client_abort on', 200, '/kept', 'GET', body => ''])
{
    my ($what, $status, $at, @m) = @$_;

    for my $how ('HTTP/1.1', 'HTTP/2') {
        my ($id, $m, $c) = leaves($how, "$at?id=ID&gate=1", undef, @m);

        go($id) if $status == 200;
        ok(until_true { $n->access_log =~ /id=$id&\S* $status / },
           "$what, $how: $status when its client leaves") or diag $n->access_log;
        go($id);
    }
}


# --- owners, wherever they were sent on to ----------------------------------

for my $how ('HTTP/1.1', 'HTTP/2') {
    carried("$_->[0], $how: carried through", '200 REPLAYED 1',
            leaves($how, $_->[1]))
        for ['X-Accel-Redirect to a location that is not protected',
             '/sent_on?id=IDa&h=X-Accel-Redirect:%20/elsewhere%3Fid%3DID%26gate%3D1'],
            ['error_page to a location that is not protected',
             '/falls?id=ID&gate=1'];

    # a stream that was reset is an error at once, and no error_page was asked
    # for; it is heard of before the answer

    my ($id, @gone) = leaves($how, '/intercepted?id=ID&gate=1&status=422');

    $n->wait_log(qr/client disconnected.*id=$id&/) if $how eq 'HTTP/2';
    carried("error_page of an answer, $how: carried through",
            '422 REPLAYED 1 says', $id, @gone);

    # nginx ends the main request with a subrequest that ends when the client
    # has left, or with it

    for (['a mirror', '/mirrored?id=ID&gate=1'],
         map { [ $_->[0], '/includes?id=ID&gate=body&body=<!--%23%20include%20'
                          . "virtual=\"$_->[1]?id=ID\"%20-->" . 'b' x 200 ] }
             ['an include', '/part'],
             ['an include that goes on without it', '/part_on'])
    {
        my ($what, $uri) = @$_;
        my ($id, @gone) = leaves($how, $uri, sub {
            my ($id) = @_;
            until_true { executions("$id-part") };
        });

        until_true { $n->access_log =~ /\?id=$id&/ };
        carried("$what, $how: its end is not that of the request",
                '200 REPLAYED 1', $id, @gone);
    }
}


# --- what can't be kept -----------------------------------------------------

# The first part of it is there, the rest is held back.

my $kept = sub {
    my ($id, @m) = @_;
    my $r = $n->request(@m);

    is(told($r) . ' ' . problem($r), '409 NOT_KEPT not_kept',
       '... not kept, and told at once');
};

for my $at ('/', '/unbuffered') {
    for my $query ('ct=text/event-stream&size=2000&te=chunked',
                   'ct=text/event-stream;%20charset=utf-8&size=2000&te=chunked',
                   'size=200000', 'size=1000000&te=chunked')
    {
        my $id = 'long' . ++$count;
        my $uri = "$at?id=$id&gate=body&$query";
        my @m = (POST => $uri, key => $id, body => 'b');
        my $c = $n->start(@m);

        held($id);
        $kept->($id, @m);
        go($id);

        my $r = $c->response;
        my ($size) = $query =~ /size=(\d+)/;
        is(join(' ', $r->{status}, $r->{body} eq pattern($size, 1),
                     executions($id)), '200 1 1', "$uri: its client has it all");

        ($id) = leaves('HTTP/1.1', "$at?id=ID&gate=body&$query", $kept);

        ok(until_true { $n->access_log =~ /id=$id&\S* 200 NEW/ },
           '... read on without its client, but not for ever') or diag $n->log;
        like($n->log, qr/its request goes on[^\n]*$id&.*stopped reading[^\n]*$id&/s,
             '... carried through first, then ended');
        is(executions($id), 1, '... executed once');
        go($id);
    }
}

# A tunnel has no response that could be kept.

for my $at ('/tunnel', '/tunnel/2xx') {
    my @m = (POST => $at, key => $at, headers => [ 'Upgrade: echo', 'Connection: Upgrade' ]);
    my $c = $n->connect;

    $c->send(message(@m));

    my $reads = sub {
        my ($want) = @_;
        until_true { $c->readable(0.1); $c->{buf} =~ $want };
    };

    ok($reads->(qr/^HTTP\/1\.1 101 .*\r\n\r\n/s), "$at: 101 to a POST");
    $kept->(undef, @m);
    $c->{buf} = '';
    $c->send('ab');
    ok($reads->(qr/\Aabab\z/), '... the tunnel goes on');
    $c->close;
}

# One that came to its end meanwhile isn't ended once more, when that time is
# over: it is over when that of the next one is.

{
    my @w = $n->workers;

    for my $ends (1, 0) {
        my ($id) = leaves('HTTP/1.1', '/?id=ID&gate=body&size=200000', $kept);

        ok($n->wait_log(qr/its request goes on[^\n]*id=$id&/), 'a client leaves');
        go($id) if $ends;
        ok(until_true { $n->access_log =~ /id=$id&\S* 200 NEW/ },
           $ends ? '... its response ends' : '... it is ended');
        go($id);
    }

    is_deeply([ $n->workers ], \@w, '... once');
}

done_testing();
