#!/usr/bin/perl

# README, "What a request gets": who owns a token is carried through when its
# client leaves, wherever it was sent on to, and whoever owns none is not. What
# can't be kept is told at once, and read on for some time only: for a second
# in this build, which has the module's fault points.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";
use Faults;
use Idempotency;
use Stress;

my $n = nginx(zone => 0, http => <<'EOC' . crowd(<<'EOC2'));
    idempotency_zone zone=z:16m;
    log_format result '$request_uri $status $idempotency_status';
    access_log $TEST_NGINX_ROOT/logs/access.log result;
EOC
    location / { idempotency zone=z; idempotency_max_response 100k;
                 proxy_pass http://$TEST_NGINX_BACKEND; }
    location /unbuffered { idempotency zone=z; idempotency_max_response 100k;
                           proxy_buffering off;
                           proxy_pass http://$TEST_NGINX_BACKEND; }
    location /kept { idempotency zone=z; proxy_ignore_client_abort on;
                     proxy_pass http://$TEST_NGINX_BACKEND; }
    location /sent_on { idempotency zone=z;
                        proxy_pass http://$TEST_NGINX_BACKEND; }
    location /elsewhere { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /falls { idempotency zone=z; error_page 502 = @fallback;
                      proxy_pass http://$TEST_NGINX_DEAD; }
    location @fallback { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /mirrored { idempotency zone=z; mirror /part;
                         proxy_pass http://$TEST_NGINX_BACKEND; }
    location /includes { idempotency zone=z; ssi on; ssi_types *;
                         proxy_buffering off;
                         proxy_pass http://$TEST_NGINX_BACKEND; }
    location /part { internal; log_subrequest on;
                     proxy_pass http://$TEST_NGINX_BACKEND/?id=$arg_id-part&delay=500; }
    location /part_on { internal; log_subrequest on;
                        proxy_ignore_client_abort on;
                        proxy_pass http://$TEST_NGINX_BACKEND/?id=$arg_id-part&delay=500; }
    location /intercepted { idempotency zone=z; error_page 422 = @says;
                            proxy_intercept_errors on;
                            proxy_pass http://$TEST_NGINX_BACKEND; }
    location @says { return 422 "says"; }
    location /off { idempotency zone=z; idempotency_bypass $arg_bypass;
                    proxy_pass http://$TEST_NGINX_BACKEND; }
EOC2

my $count = 0;


# --- requests that own nothing ----------------------------------------------

# [what, method, URI, options, what nginx does when their client leaves]

for (['a GET', 'GET', '/', [], 499],
     ['a POST without a key', 'POST', '/', [ body => 'b' ], 499],
     ['a bypass', 'POST', '/off', [ key => 'k1', body => 'b' ], 499,
      '&bypass=1'],
     ['a GET, proxy_ignore_client_abort on', 'GET', '/kept', [], 200])
{
    my ($what, $method, $uri, $o, $status, $more) = @$_;

    for my $how ('HTTP/1.1', 'HTTP/2') {
        my $id = 'free' . ++$count;
        my $u = "$uri?id=$id&gate=1" . ($more // '');

        if ($how eq 'HTTP/1.1') {
            my $c = $n->start($method, $u, @$o);
            held($id);
            $c->close;

        } else {
            my $h = h2($n);
            my $s = $h->request($method, $u, @$o);
            held($id);
            $h->reset_stream($s);
        }

        go($id) if $status == 200;

        ok(until_true { $n->access_log =~ /id=$id&\S* $status / },
           "$what, $how: $status when its client leaves") or diag $n->access_log;

        go($id) if $status != 200;
    }
}


# --- owners, wherever they were sent on to ----------------------------------

for (['X-Accel-Redirect to a location that is not protected',
      '/sent_on?id=%s1&h=X-Accel-Redirect:%%20/elsewhere%%3Fid%%3D%s%%26gate%%3D1'],
     ['error_page to a location that is not protected', '/falls?id=%s&gate=1'])
{
    my ($what, $form) = @$_;
    my $id = 'owner' . ++$count;
    my $uri = $form =~ s/%s/$id/gr =~ s/%%/%/gr;

    my $c = $n->start('POST', $uri, key => $id, body => 'b');
    held($id);
    $c->close;

    my $waits = $n->start('POST', $uri, key => $id, body => 'b');
    go($id);

    my $r = $waits->response;
    is(status_of($r) =~ /^200 (?:WAITED|REPLAYED)/ ? 'recorded' : status_of($r),
       'recorded', "$what: carried through without its client");
    is(executions($id), 1, '... executed once');
}


# a stream that was reset is an error at once, and no error_page was asked for

for my $how ('HTTP/1.1', 'HTTP/2') {
    my $id = 'owner' . ++$count;
    my $uri = "/intercepted?id=$id&gate=1&status=422";
    my @o = (key => $id, body => 'b');

    my $h = h2($n);
    my $c = $how eq 'HTTP/1.1' ? $n->start('POST', $uri, @o) : undef;
    my $s = $c ? undef : $h->request('POST', $uri, @o);

    held($id);
    $c ? $c->close : $h->reset_stream($s);

    # it was heard of, where it is heard of before the answer
    until_true { $n->log =~ /client has gone.*\Q$uri\E/ } if $s;

    go($id);

    my $r = $n->post($uri, @o);
    is((status_of($r) =~ s/WAITED/REPLAYED/r) . " $r->{body}",
       '422 REPLAYED says', "error_page of an answer, $how: carried through");
    is(executions($id), 1, '... executed once');
}


# --- subrequests that end when the client has left --------------------------

# nginx ends the main request with them.

for (['a mirror', '/mirrored?id=%s&gate=1'],
     map { [ $_->[0], '/includes?id=%s&gate=body&body=<!--%%23%%20include%%20'
                      . "virtual=\"$_->[1]?id=%s\"%%20-->" . 'b' x 200 ] }
         ['an include', '/part'],
         ['an include that goes on without it', '/part_on'])
{
    my ($what, $form) = @$_;

    for my $how ('HTTP/1.1', 'HTTP/2') {
        my $id = 'sub' . ++$count;
        my $uri = $form =~ s/%s/$id/gr =~ s/%%/%/gr;
        my @o = (key => $id, body => 'b');

        my $h = h2($n);
        my $c;

        if ($how eq 'HTTP/1.1') {
            $c = $n->start('POST', $uri, @o);
            held($id);
            until_true { executions("$id-part") };
            $c->close;

        } else {
            my $s = $h->request('POST', $uri, @o);
            held($id);
            until_true { executions("$id-part") };
            $h->reset_stream($s);
        }

        # it has left, then the subrequest ends, or all does

        until_true { $n->access_log =~ /\?id=$id&/ };
        go($id);

        is(status_of($n->post($uri, @o)) =~ s/WAITED/REPLAYED/r, '200 REPLAYED',
           "$what, $how: its end is not that of the request");
        is(executions($id), 1, '... executed once');
    }
}


# --- what can't be kept -----------------------------------------------------

# The first part of it is there, the rest is held back.

for my $where ('', 'unbuffered') {
    for (['a stream', 'ct=text/event-stream&size=2000&te=chunked'],
         ['a stream with a charset',
          'ct=text/event-stream;%20charset=utf-8&size=2000&te=chunked'],
         ['a response over the limit by its length', 'size=200000'],
         ['a response over the limit by its bytes',
          'size=1000000&te=chunked'])
    {
        my ($what, $query) = @$_;

        $what .= ', not buffered' if $where;

        my $id = 'long' . ++$count;
        my $uri = "/$where?id=$id&gate=body&$query";
        my @o = (key => $id, body => 'b');

        my $waits;
        my $c = $n->start('POST', $uri, @o);
        held($id);

        my $r = $n->post($uri, @o);
        is(status_of($r) . ' ' . problem($r), '409 NOT_KEPT not_kept',
           "$what: not kept, and told at once");

        # and its client has all of it

        go($id);
        $r = $c->response;
        is($r->{status} . ' ' . ($r->{body} eq pattern(length $r->{body}, 1)),
           '200 1', '... its client has all of it');
        is(executions($id), 1, '... executed once');

        # another one leaves in the middle

        $id = 'long' . ++$count;
        $uri = "/$where?id=$id&gate=body&$query";
        @o = (key => $id, body => 'b');

        $c = $n->start('POST', $uri, @o);
        held($id);
        $n->post($uri, @o);
        $c->close;

        ok(until_true { $n->access_log =~ /\Qid=$id\E&\S* 200 NEW/ },
           '... read on without its client, but not for ever')
            or diag $n->log;
        like($n->log, qr/has gone, its request is carried through[^\n]*\Q$id\E/,
             '... carried through first');
        like($n->log, qr/is read no longer[^\n]*\Q$id\E/, '... then ended');
        is(executions($id), 1, '... executed once');
        go($id);
    }
}

done_testing();
