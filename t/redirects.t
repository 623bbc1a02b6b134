#!/usr/bin/perl

# The request may walk through several locations before it has its answer, and
# have subrequests on the way: it owns its token throughout, claims it once,
# and the final answer is what is replayed. Subrequests are left alone.

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;

my $lua = has_module('ngx_http_lua_module') && has_module('ndk_http_module');

# one worker: what a replay sets off in the background has begun before the
# next request is looked at

my $n = nginx(
    modules => [$lua ? qw(ndk_http_module ngx_http_lua_module) : ()],
    files => {
        'html/files/secret.txt'  => "a file\n",
        'html/there.txt'         => "there\n",
        'html/sorry.html'        => "sorry\n",
        'html/dir/index.app'     => "an application\n",
    },
    http => <<'EOC',
    idempotency_zone zone=other:1m;
    idempotency zone=z;
    idempotency_in_progress reject;
EOC
    server => <<'EOC' . ($lua ? <<'EOC2' : ''));
    root $TEST_NGINX_ROOT/html;
    proxy_http_version 1.1;
    proxy_set_header Connection "";

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /off { idempotency off; proxy_pass http://$TEST_NGINX_BACKEND; }

    # where redirects lead to
    location /fallback {
        proxy_pass http://$TEST_NGINX_BACKEND/fallback?id=f-$arg_id&size=500&h=X-From:%20fallback;
    }
    location @fallback {
        proxy_pass http://$TEST_NGINX_BACKEND;
        rewrite ^ /named?id=f-$arg_id&echo=1&status=203&h=X-From:%20named? break;
    }
    location /other {
        idempotency zone=other;
        idempotency_scope other;
        proxy_pass http://$TEST_NGINX_BACKEND/other?id=f-$arg_id;
    }
    location /open {
        idempotency off;
        proxy_pass http://$TEST_NGINX_BACKEND/open?id=f-$arg_id;
    }
    location /files/ { internal; }

    # rewrite
    location /rewrite/on { idempotency off; rewrite ^ /landed last; }
    location /rewrite/off { rewrite ^ /off last; }

    # error_page
    location /error/uri {
        error_page 404 = /fallback?id=$arg_id;
        proxy_intercept_errors on;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
    location /error/status {
        error_page 404 /fallback?id=$arg_id;
        proxy_intercept_errors on;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
    location /error/changed {
        error_page 404 =202 /fallback?id=$arg_id;
        proxy_intercept_errors on;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
    location /error/named {
        error_page 404 = @fallback;
        proxy_intercept_errors on;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
    location /error/file {
        error_page 404 /sorry.html;
        proxy_intercept_errors on;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
    location = /sorry.html { }
    location /error/outside {
        error_page 404 =307 http://elsewhere/;
        proxy_intercept_errors on;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
    location /error/other {
        error_page 404 = /other?id=$arg_id;
        proxy_intercept_errors on;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
    location /error/off {
        error_page 404 = /open?id=$arg_id;
        proxy_intercept_errors on;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
    location /error/dead {
        error_page 502 = @fallback;
        proxy_pass http://$TEST_NGINX_DEAD;
    }
    location /error/sorry {
        error_page 502 /sorry.html;
        proxy_pass http://$TEST_NGINX_DEAD;
    }

    # an application's usual shape of a branch
    location /branch/200 {
        error_page 418 =200 @branch;
        return 418;
    }
    location /branch/202 {
        error_page 418 =202 @branch;
        if ($arg_id) { return 418; }
    }
    location /branch/own {
        error_page 418 = @branch;
        return 418;
    }
    location /branch/try {
        error_page 418 =200 @branch-try;
        return 418;
    }
    location @branch-try { try_files /none.txt @branch; }
    location /branch/off {
        idempotency off;
        error_page 418 =200 @branch;
        return 418;
    }
    location /branch/none {
        error_page 404 =200 @branch;
        try_files /none.txt =404;
    }
    location /branch/any {
        satisfy any;
        allow all;
        deny all;
        error_page 404 = @branch;
        try_files /none.txt =404;
    }
    location /branch/static {
        error_page 405 =200 @branch;
        try_files /there.txt =500;
    }
    location @branch {
        error_page 409 =200 @fallback;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    # a refusal of ours, sent on, method and all
    location /refused/200 {
        error_page 409 =200 @fallback;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
    location /refused/own {
        error_page 409 = @fallback;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
    location /refused/kept {
        error_page 409 @fallback;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    # X-Accel-Redirect
    location @accel {
        rewrite ^ /named?id=f-$arg_id&echo=1&status=203? break;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    # try_files, index
    location /try/named { try_files /none.txt @fallback; }
    location /try/uri { try_files /none.txt /fallback?id=$arg_id; }
    location /try/code { try_files /none.txt =404; }
    location /try/file { try_files /there.txt =404; }
    location /try/late { idempotency off; try_files /none.txt @late; }
    location @late {
        idempotency zone=z;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
    location /dir/ { index index.app; }
    location = /dir/index.app {
        proxy_pass http://$TEST_NGINX_BACKEND/app?id=f-$arg_id;
    }

    # subrequests. They have the key of the main request, and here even its
    # method would be one to protect
    location /auth/ {
        set $id $arg_id;      # an auth_request has no arguments
        set $may $arg_may;
        auth_request /ask;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
    location = /ask {
        internal;
        idempotency_methods GET POST;
        proxy_pass http://$TEST_NGINX_BACKEND/ask?id=ask-$id&status=$may;
        proxy_pass_request_body off;
        proxy_set_header Content-Length "";
    }
    location /mirrored/ {
        mirror /mirror;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
    location /mirrored/bare {
        mirror /mirror-bare;
        mirror_request_body off;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
    location = /mirror {
        internal;
        idempotency_methods GET POST;
        proxy_pass http://$TEST_NGINX_BACKEND/mirror?id=m-$arg_id;
    }
    location = /mirror-bare {
        internal;
        proxy_pass http://$TEST_NGINX_BACKEND/mirror?id=m-$arg_id;
        proxy_pass_request_body off;
        proxy_set_header Content-Length "";
    }
    location /ssi {
        ssi on;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
    location = /part {
        idempotency_methods GET POST;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
    location = /part-before { proxy_pass http://$TEST_NGINX_BACKEND/p?body=before; }
    location = /part-after { proxy_pass http://$TEST_NGINX_BACKEND/p?body=after; }
    location /added {
        addition_types *;
        add_before_body /part-before;
        add_after_body /part-after;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
    location /action {
        set $id $arg_id;      # a post_action has no arguments
        post_action /after;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
    location = /after {
        internal;
        proxy_pass http://$TEST_NGINX_BACKEND/after?id=a-$id;
    }
EOC
    location /capture {
        idempotency off;
        content_by_lua_block {
            local r = ngx.location.capture("/sub?id=capture",
                { method = ngx.HTTP_POST, body = "sub" })
            ngx.print(r.status, " ", r.body)
        }
    }
    location /capturing {
        content_by_lua_block {
            local r = ngx.location.capture("/sub?id=capturing",
                { method = ngx.HTTP_POST, body = "sub" })
            ngx.print(r.status, " ", r.body)
        }
    }
EOC2


# Runs a request, its replays and a conflict. How often which of the backend's
# counters moved is the caller's to say.

sub replayed {
    my ($name, $uri, $k, %count) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my @m = (key => $k, body => 'body', headers => ['Cookie: me=1']);
    my $first = $n->post($uri, @m);

    for (1, 2) {
        same_replay($first, $n->post($uri, @m), "$name: replay $_");
    }

    is($n->post($uri, @m, body => 'other')->{status}, 409,
       "$name: a conflict");

    for (sort keys %count) {
        is(executions($_), $count{$_}, "$name: $_ executed $count{$_}");
    }

    return $first;
}


# --- rewrite ----------------------------------------------------------------

{
    # the location where it ends decides
    my $r = replayed('rewrite into a protected location', '/rewrite/on?id=rw',
                     'rw', 'rw' => 1);
    like(last_request('rw'), qr{^POST /landed\?id=rw }, 'rewrite: landed');

    my @r = map { $n->post('/rewrite/off?id=rwo', key => 'rwo',
                           body => '') } 1, 2;
    ok(!$r[1]->replayed && executions('rwo') == 2,
       'rewrite into an unprotected location: not protected');
}


# --- error_page -------------------------------------------------------------

{
    my $r = replayed('error_page to a URI', '/error/uri?id=e1&status=404',
                     'e1', 'e1' => 1, 'f-e1' => 1);
    is($r->{status}, 200, 'error_page to a URI: its status');
    is($r->header('X-From'), 'fallback', 'error_page to a URI: its answer');
    ok($r->{body} eq pattern(500, 1), 'error_page to a URI: its body');
    like(last_request('f-e1'), qr/^GET /, 'error_page to a URI: by GET');

    $r = replayed('error_page that keeps the status',
                  '/error/status?id=e2&status=404', 'e2',
                  'e2' => 1, 'f-e2' => 1);
    is($r->{status}, 404, 'error_page that keeps the status: it does');
    is($r->header('X-From'), 'fallback', 'and has its own answer');

    $r = replayed('error_page that changes the status',
                  '/error/changed?id=e3&status=404', 'e3',
                  'e3' => 1, 'f-e3' => 1);
    is($r->{status}, 202, 'error_page that changes the status: it does');

    $r = replayed('error_page to a named location',
                  '/error/named?id=e4&status=404', 'e4',
                  'e4' => 1, 'f-e4' => 1);
    is($r->{status}, 203, 'error_page to a named location: its status');
    like($r->{body}, qr/^POST /, 'error_page to a named location: by POST');
    like($r->{body}, qr/\n\nbody\z/, 'and with the body');

    $r = replayed('error_page to a file', '/error/file?id=e5&status=404',
                  'e5', 'e5' => 1);
    is($r->{status}, 404, 'error_page to a file: its status');
    is($r->{body}, "sorry\n", 'error_page to a file: the file');

    $r = replayed('error_page elsewhere', '/error/outside?id=e6&status=404',
                  'e6', 'e6' => 1);
    is($r->{status}, 307, 'error_page elsewhere: its status');
    is($r->header('Location'), 'http://elsewhere/', 'and its location');

    # what was no error there passes
    $r = replayed('error_page unused', '/error/uri?id=e7&status=201', 'e7',
                  'e7' => 1, 'f-e7' => 0);
    is($r->{status}, 201, 'error_page unused: the answer passes');
}

{
    # the first location's token: the second one's zone hears nothing of it
    replayed('error_page into another zone', '/error/other?id=o1&status=404',
             'o1', 'o1' => 1, 'f-o1' => 1);

    my $r = $n->post('/other?id=o1', key => 'o1', body => 'new');
    is($r->{status}, 200, 'the other zone has not seen the key');
    ok(!$r->replayed, 'the other zone replays nothing');
    is(executions('f-o1'), 2, 'there it executes');

    replayed('error_page to where it is off', '/error/off?id=o2&status=404',
             'o2', 'o2' => 1, 'f-o2' => 1);
}

{
    # the first upstream is not there, the second answers
    my $r = replayed('error_page for a dead upstream', '/error/dead?id=d1',
                     'd1', 'f-d1' => 1);
    is($r->{status}, 203, 'error_page for a dead upstream: its answer');

    # nobody got a byte: the answer is nginx's own page, the token is free
    my @r = map { $n->post('/error/sorry?id=d2', key => 'd2', body => '') }
            1, 2;
    is_deeply([map { $_->{status} } @r], [502, 502], 'dead, and a page for it');
    is($r[1]{body}, "sorry\n", 'the page');
    ok(!$r[1]->replayed, 'dead, and a page for it: not bound');
}


# "return" is no refusal: where error_page leads is where the request begins.

for ([ '/branch/200' => 201, 200 ], [ '/branch/202' => 201, 202 ],
     [ '/branch/own' => 201, 201 ], [ '/branch/try' => 201, 200 ],
     [ '/branch/off' => 201, 200 ], [ '/branch/none' => 201, 200 ],
     [ '/branch/any' => 201, 201 ], [ '/branch/static' => 201, 200 ])
{
    my ($path, $status, $shown) = @$_;
    (my $k = $path) =~ tr{/}{}d;

    my $r = replayed("a branch: $path", "$path?id=$k&status=$status", $k,
                     $k => 1);
    is($r->{status}, $shown, "a branch: $path: its status");
    like($r->{body}, qr/^exec=1 id=$k$/m, "a branch: $path: its answer");
}

# What we refuse is executed nowhere as a request of its own, and leaves alone
# what it was refused for.

for my $path (qw(/refused/200 /refused/own /refused/kept)) {
    (my $k = $path) =~ tr{/}{}d;
    my @m = (key => $k, headers => [ 'Cookie: me=1' ]);
    my $uri = "$path?id=$k";

    my $first = $n->post($uri, @m, body => 'body');

    for my $count (1 .. 3) {
        my $r = $n->post($uri, @m, body => 'other');
        is(executions("f-$k"), $count, "$path: a refusal's page, each time");
        ok(!$r->replayed, "$path: ... claimed by nobody");
    }

    same_replay($first, $n->post($uri, @m, body => 'body'),
                "$path: the outcome is as it was");
    is(executions($k), 1, "$path: executed once");
}


# --- X-Accel-Redirect -------------------------------------------------------

{
    my $r = replayed('X-Accel-Redirect to a file',
                     '/x?id=x1&h=X-Accel-Redirect:%20/files/secret.txt'
                     . '&h=X-Other:%20no&h=Cache-Control:%20private'
                     . '&h=Set-Cookie:%20a=1&ct=text/html', 'x1', 'x1' => 1);
    is($r->{body}, "a file\n", 'X-Accel-Redirect to a file: the file');
    is($r->header('Content-Type'), 'text/html',
       'X-Accel-Redirect to a file: the type of the upstream');
    is($r->header('Set-Cookie'), 'a=1',
       'X-Accel-Redirect to a file: and its cookie');
    ok($r->has('Last-Modified') && $r->has('ETag'),
       'X-Accel-Redirect to a file: date and tag of the file');
    ok(!$r->has('X-Accel-Redirect'), 'X-Accel-Redirect stays inside');

    # the file's handler heeds ranges and conditions, on a replay as on the
    # original
    my $uri = '/x?id=x2&h=X-Accel-Redirect:%20/files/secret.txt';
    my @ask = (['Range: bytes=2-5'], ['If-None-Match: ' . $r->header('ETag')],
               ['If-Modified-Since: ' . $r->header('Last-Modified')],
               ['If-Match: "other"'], ['Range: bytes=100-']);

    $n->post($uri, key => 'x2', body => '');

    for my $i (0 .. $#ask) {
        my $k = "x2-$i";
        (my $new = $uri) =~ s/x2/$k/;

        my $first = $n->post($new, key => $k, body => '',
                             headers => $ask[$i]);
        my $again = $n->post($uri, key => 'x2', body => '',
                             headers => $ask[$i]);
        same_message($first, $again, "$ask[$i][0]: as on an original");
        is($first->{status}, (206, 304, 304, 412, 416)[$i],
           "$ask[$i][0]: it acted");

        # where the filter puts an error page in its place, that is no replay
        ok($again->replayed, "$ask[$i][0]: replayed") if $i < 3;
    }

    is(executions('x2'), 1, 'X-Accel-Redirect: executed once for all of them');

    # what a filter makes of an original is not the outcome of the operation
    $r = $n->post('/x?id=x2-0&h=X-Accel-Redirect:%20/files/secret.txt',
                  key => 'x2-0', body => '');
    is($r->{status}, 200, 'a range asked for first: all of it was recorded');
    is($r->{body}, "a file\n", 'a range asked for first: with all bytes');

    # and where it let nothing of it pass, it was executed nevertheless
    for my $i (0 .. $#ask) {
        $r = $n->post("/x?id=x2-$i&h=X-Accel-Redirect:%20/files/secret.txt",
                      key => "x2-$i", body => '', headers => $ask[$i]);
        is(executions("x2-$i"), 1, "$ask[$i][0]: executed once");
    }

    $r = replayed('X-Accel-Redirect to a named location',
                  '/x?id=x3&h=X-Accel-Redirect:%20@accel', 'x3',
                  'x3' => 1, 'f-x3' => 1);
    is($r->{status}, 203, 'X-Accel-Redirect to a named location: its answer');
    like($r->{body}, qr/\n\nbody\z/, 'and it got the body');

    replayed('X-Accel-Redirect to a URI',
             '/x?id=x4&h=X-Accel-Redirect:%20/fallback?id=x4', 'x4',
             'x4' => 1, 'f-x4' => 1);
}


# --- try_files, index -------------------------------------------------------

{
    my $r = replayed('try_files to a named location', '/try/named?id=t1',
                     't1', 'f-t1' => 1);
    is($r->{status}, 203, 'try_files to a named location: its answer');

    $r = replayed('try_files to a URI', '/try/uri?id=t2', 't2', 'f-t2' => 1);
    is($r->header('X-From'), 'fallback', 'try_files to a URI: its answer');

    # try_files chooses before us: with a code it has answered, like `return`
    my @r = map { $n->post('/try/code', key => 't3', body => $_) } 1, 2;
    is_deeply([map { $_->{status} } @r], [404, 404],
              'try_files to a code: it is one');

    $r = replayed('try_files finds a file', '/try/file?id=t4', 't4');
    is($r->{status}, 405, 'try_files finds a file: no POST to files');

    replayed('try_files into a protected location', '/try/late?id=t5', 't5',
             't5' => 1);

    $r = replayed('index', '/dir/?id=i1', 'i1', 'f-i1' => 1);
    like(last_request('f-i1'), qr{/app}, 'index: it was asked');
}


# --- auth_request -----------------------------------------------------------

{
    my $r = replayed('auth_request', '/auth/?id=a1&may=204', 'a1',
                     'a1' => 1);
    is($r->{status}, 200, 'auth_request: passes');

    # execution, two replays, one conflict: permission is asked for each time,
    # and not the main request's token was spent on it
    is(executions('ask-a1'), 4, 'auth_request: asked each time');

    $r = $n->post('/auth/?id=a2&may=403', key => 'a2', body => 'b');
    is($r->{status}, 403, 'auth_request: turned away');
    is(executions('a2'), 0, 'auth_request: not executed');

    # for another URI, and so another fingerprint: the key must be free
    $r = $n->post('/auth/?id=a2&may=204', key => 'a2', body => 'b');
    is($r->{status}, 200, 'auth_request: it left no trace');
    is(executions('a2'), 1, 'auth_request: executed now');

    # the record is there, the right to see it is not
    my $k = 'a3';
    $n->post("/x?id=$k", key => $k, body => '');
    $r = $n->post("/auth/?id=$k&may=401", key => $k, body => '');
    is($r->{status}, 401, 'auth_request: before any conflict');
}


# --- mirror -----------------------------------------------------------------

for my $at ('/mirrored/', '/mirrored/bare') {
    my $k = $at =~ /bare/ ? 'm2' : 'm1';

    replayed("mirror at $at", "$at?id=$k", $k, $k => 1);

    # an execution after the replays: its mirror shot comes last
    $n->post("/mirrored/?id=$k-end", key => "$k-end", body => '');
    ok(until_true { executions("m-$k-end") == 1 }, "mirror at $at: fires");
    until_true { executions("m-$k") };
    is(executions("m-$k"), 1, "mirror at $at: once, and not on replays");
    is((split /\n\n/, last_request("m-$k"), 2)[1] // '',
       $k eq 'm1' ? 'body' : '', "mirror at $at: with its body or without");
}


# --- other subrequests ------------------------------------------------------

{
    # included parts are asked for again on a replay: SSI acts on it
    my $part = '%3C!--%23%20include%20virtual=%22/part?id=part-ID'
               . '%26noexec=1%26body=part%22%20--%3E';
    (my $both = "[$part|$part]") =~ s/ID/s1/g;

    my $r = replayed('ssi', "/ssi?id=s1&ct=text/html&body=$both", 's1',
                     's1' => 1);
    is($r->{body}, '[part|part]', 'ssi: included twice');
    is(executions('part-s1'), 6, 'ssi: its parts are made each time');

    # the subrequest had the key in its header: it must be free
    $r = $n->post('/part?id=part-s1', key => 'part', body => '');
    ok(!$r->replayed && $r->{status} == 200, 'ssi: nothing else was bound');

    # a part that fails is no failure of the whole
    (my $bad = $part) =~ s/body=part/body=part%26status=500/;
    $bad =~ s/ID/s2/;
    $r = replayed('ssi, a part fails', "/ssi?id=s2&ct=text/html&body=$bad",
                  's2', 's2' => 1);
    is($r->{status}, 200, 'ssi, a part fails: the status is that of the page');

    $r = replayed('addition', '/added?id=ad1&body=-main-', 'ad1',
                  'ad1' => 1);
    is($r->{body}, 'before-main-after', 'addition: it acted');
}

{
    my $r = replayed('post_action', '/action?id=p1', 'p1', 'p1' => 1);
    ok(until_true { executions('a-p1') >= 1 }, 'post_action: fires');

    # it comes after the request, and must not take its token with it
    ok($n->post('/action?id=p1', key => 'p1', body => 'body',
                headers => ['Cookie: me=1'])->replayed,
       'post_action: the record stays');
}

SKIP: {
    skip 'no ngx_http_lua_module for this nginx', 1 unless $lua;

    # a subrequest that looks just like a request to protect
    my @r = map { $n->post('/capture', key => 'l1', body => '') } 1, 2;
    is_deeply([map { $_->{body} } @r], ["200 exec=1 id=capture\n",
                                        "200 exec=2 id=capture\n"],
              'a subrequest of an unprotected request is left alone');

    my $r = replayed('a subrequest by POST', '/capturing', 'l2',
                     'capturing' => 1);
    is($r->{body}, "200 exec=1 id=capturing\n",
       'a subrequest by POST: its answer');
}

ok($n->stop, 'nginx stops in good order');

done_testing();
