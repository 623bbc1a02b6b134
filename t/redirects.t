# docs/requests.md: a request may walk through several locations
# before it has its answer, and have subrequests on the way. It owns its token
# throughout, claims it once, and the final answer is what is replayed.
# Subrequests are left alone; those of Lua are in other_modules.t. The key is the URI.

use lib 't/lib';
use Test::Nginx::Idempotency 'no_plan';

# [URI, status, what the body is like], ...: each is executed, replayed, and in
# conflict with another body. Remembered for the sections that come below.

my @cases;

sub cases {
    @cases = @_;
    return [ map { ("POST $_->[0]\nbody") x 2, "POST $_->[0]\nother" } @cases ];
}

sub codes { return [ map { ($_->[1] // 200) x 2, 409 } @cases ] }

sub bodies { return [ map { ($_->[2] // '^exec=') x 2, 'conflict' } @cases ] }

sub statuses { return 'NEW REPLAYED CONFLICT ' x @cases }

sub twice { return [ map { ($_) x 2 } @_ ] }

run_tests();

__DATA__

=== TEST 1: rewrite: the location where it ends decides
--- config
idempotency_key $request_uri;

location / { idempotency zone=z; proxy_pass http://backend; }
location /rewrite { rewrite ^ /landed last; }
location /rewrite/off { idempotency zone=z; rewrite ^ /off last; }
location /off { proxy_pass http://backend; }
--- request eval: [@{cases(['/rewrite?echo=1'])}, @{twice('POST /rewrite/off')}]
--- response_body_like: ^POST /landed\?echo=1 |conflict|^exec=
--- idempotency_status: NEW REPLAYED CONFLICT - -
--- executions: 3

=== TEST 2: error_page: its response is the outcome, wherever it comes from
--- user_files
>>> sorry.html
sorry
--- config
idempotency zone=z;
idempotency_key $request_uri;
proxy_intercept_errors on;

location / { error_page 404 = /there?echo=1; proxy_pass http://backend; }
location /status { error_page 404 /there?echo=1; proxy_pass http://backend; }
location /changed { error_page 404 =202 /there?echo=1; proxy_pass http://backend; }
location /named { error_page 404 = @there; proxy_pass http://backend; }
location /file { error_page 404 /sorry.html; proxy_pass http://backend; }
location /outside { error_page 404 =307 http://elsewhere/; proxy_pass http://backend; }
location /dead { error_page 502 = @there; proxy_pass http://$TEST_NGINX_DEAD; }
location /free { error_page 502 /sorry.html; proxy_pass http://$TEST_NGINX_DEAD; }

location /there { proxy_pass http://backend; }
location @there { rewrite ^ /there?echo=1&status=203? break; proxy_pass http://backend; }
location = /sorry.html { root html; }
--- request eval
cases(['/uri?status=404', 200, '^GET /there'], ['/status?status=404', 404, '^GET /there'],
      ['/changed?status=404', 202, '^GET /there'], ['/named?status=404', 203, '^POST /there.*\nbody$'],
      ['/file?status=404', 404, '^sorry$'], ['/outside?status=404', 307, ''],
      ['/dead', 203, '^POST /there'], ['/unused?status=201', 201])
--- error_code eval: codes()
--- response_headers eval: [('') x 15, ('Location: http://elsewhere/') x 2, ('') x 7]
--- response_body_like eval: bodies()
--- idempotency_status eval: statuses()
--- executions: 12

=== TEST 3: ... but nothing was sent to any upstream if it is nginx's own page
--- request eval: twice('POST /free')
--- error_code: 502
--- response_body_like: ^sorry$
--- idempotency_status: NEW

=== TEST 4: what a request owns is the first location's; another one hears nothing of it
--- http_config
idempotency_zone zone=other:1m;
--- config
idempotency_key $arg_k;
proxy_intercept_errors on;

location / { idempotency zone=z; error_page 404 = /other?k=$arg_k; proxy_pass http://backend; }
location /to-off { idempotency zone=z; error_page 404 = /off; proxy_pass http://backend; }
location /other { idempotency zone=other; idempotency_scope other; proxy_pass http://backend; }
location /off { proxy_pass http://backend; }
--- request eval
[@{cases(['/?k=other&status=404'], ['/to-off?k=off&status=404'])}, "POST /other?k=other"]
--- response_body_like eval: [@{bodies()}, '^exec=2 ']
--- idempotency_status eval: statuses() . 'NEW'
--- executions: 5

=== TEST 5: "return" is no refusal: where error_page leads is where a request begins
--- user_files
>>> there.txt
there
--- config
idempotency zone=z;
idempotency_key $request_uri;
root html;

location /200 { error_page 418 =200 @branch; return 418; }
location /202 { error_page 418 =202 @branch; if ($arg_status) { return 418; } }
location /own { error_page 418 = @branch; return 418; }
location /try { error_page 418 =200 @try; return 418; }
location /off { idempotency off; error_page 418 =200 @branch; return 418; }
location /none { error_page 404 =200 @branch; try_files /none.txt =404; }
location /any { satisfy any; allow all; deny all; error_page 404 = @branch; try_files /none.txt =404; }
location /static { error_page 405 =200 @branch; try_files /there.txt =500; }

location @try { try_files /none.txt @branch; }
location @branch { proxy_pass http://backend; }
--- request eval
cases(map ["/$_->[0]?status=201", $_->[1]], ['200', 200], ['202', 202], ['own', 201], ['try', 200],
      ['off', 200], ['none', 200], ['any', 201], ['static', 200])
--- error_code eval: codes()
--- response_body_like eval: bodies()
--- idempotency_status eval: statuses()
--- executions: 8

=== TEST 6: what we refuse claims nothing at its error page, and leaves alone what it is refused for
--- config
idempotency zone=z;
idempotency_key $request_uri;

location /200 { error_page 409 =200 @fallback; proxy_pass http://backend; }
location /own { error_page 409 = @fallback; proxy_pass http://backend; }
location /kept { error_page 409 @fallback; proxy_pass http://backend; }
location @fallback { rewrite ^ /fallback?echo=1&status=203? break; proxy_pass http://backend; }
--- request eval
[map { ("POST $_?refused=1\nbody", ("POST $_?refused=1\nother") x 3, "POST $_?refused=1\nbody") } qw(/200 /own /kept)]
--- error_code: 200 200 200 200 200 200 203 203 203 200 200 409 409 409 200
--- response_body_like eval: [('^exec=', ('^POST /fallback') x 3, '^exec=') x 3]
--- idempotency_status eval: 'NEW CONFLICT CONFLICT CONFLICT REPLAYED ' x 3
--- executions: 12

=== TEST 7: X-Accel-Redirect: what is sent from there, with what the upstream said
--- user_files
>>> files/secret.txt 202001010000
a file
--- config
idempotency zone=z;
idempotency_identity $host;
idempotency_key $request_uri$http_x_key;

location / { proxy_pass http://backend; }
location /files/ { internal; root html; }
location @accel { rewrite ^ /there?echo=1&status=203? break; proxy_pass http://backend; }
--- request eval
cases(['/?h=X-Accel-Redirect:%20/files/secret.txt&h=X-Other:%20no&h=Cache-Control:%20private'
       . '&h=Set-Cookie:%20a=1&ct=text/html', 200, '^a file$'],
      ['/?h=X-Accel-Redirect:%20@accel', 203, '^POST /there.*\nbody$'],
      ['/?h=X-Accel-Redirect:%20/uri?echo=1', 200, '^GET /uri'])
--- error_code eval: codes()
--- response_headers eval
[("! X-Accel-Redirect\nContent-Type: text/html\nSet-Cookie: a=1\nETag: \"5e0be100-7\"\n"
  . 'Last-Modified: Wed, 01 Jan 2020 00:00:00 GMT') x 2, ('') x 7]
--- response_body_like eval: bodies()
--- idempotency_status eval: statuses()
--- executions: 5

=== TEST 8: X-Accel-Redirect: ranges and conditions act on a replay as on an original
--- request: POST /ranges?h=X-Accel-Redirect:%20/files/secret.txt
--- more_headers eval
my @ask = ('Range: bytes=2-5', 'If-None-Match: "5e0be100-7"', 'If-Modified-Since: Wed, 01 Jan 2020 00:00:00 GMT');
[map({ "X-Key: $_\n$ask[$_]" } 0 .. 2), 'X-Key: plain', map({ "X-Key: plain\n$_" } @ask), 'X-Key: 0']
--- error_code: 206 304 304 200 206 304 304 200
--- idempotency_status eval: 'NEW ' x 4 . 'REPLAYED ' x 4
--- executions: 4

=== TEST 9: ... and where a filter lets nothing of it pass, it was executed nevertheless
--- request: POST /failed?h=X-Accel-Redirect:%20/files/secret.txt
--- more_headers eval
my @ask = ('If-Match: "other"', 'Range: bytes=100-', 'If-None-Match: "5e0be100-7"');
[map { ("X-Key: $_\n$ask[$_]") x 2 } 0 .. 2]
--- error_code: 412 412 416 416 304 409
--- executions: 3

=== TEST 10: try_files and index: a location's, or a file
--- user_files
>>> there.txt
there
>>> dir/index.app
an application
--- config
idempotency zone=z;
idempotency_key $request_uri;
root html;

location / { proxy_pass http://backend; }
location /named { try_files /none.txt @late; }
location /uri { try_files /none.txt /there?$args; }
location /file { try_files /there.txt =404; }
location /code { try_files /none.txt =404; }
location /off { idempotency off; try_files /none.txt @late; }
location @late { idempotency zone=z; proxy_pass http://backend; }
location /dir/ { index index.app; }
location = /dir/index.app { proxy_pass http://backend; }
--- request eval
[@{cases(['/named'], ['/uri?echo=1', 200, '^POST /there'], ['/off'],
         ['/dir/?echo=1', 200, '^POST /dir/index.app'])}, @{twice('POST /code', 'POST /file')}]
--- error_code eval: [@{codes()}, 404, 404, 405, 405]
--- response_body_like eval: [@{bodies()}, '404', '404', '405', '405']
--- idempotency_status eval: statuses() . '- - NEW NEW'
--- executions: 4

=== TEST 11: auth_request: permission is asked for each time, and claims nothing
--- config
idempotency zone=z;
idempotency_key $http_idempotency_key;

location / { proxy_pass http://backend; }
location /auth { set $may $arg_may; auth_request /ask; proxy_pass http://backend; }

location = /ask {
    internal;
    idempotency_methods GET POST;
    proxy_pass http://backend/ask?status=$may;
    proxy_pass_request_body off;
    proxy_set_header Content-Length "";
}
--- request eval
[@{cases(['/auth?may=204'])}, 'POST /auth?may=403', 'POST /auth?may=204', 'POST /bound', 'POST /auth?may=401']
--- more_headers eval
[map "Idempotency-Key: $_", ('auth') x 3, ('denied') x 2, ('bound') x 2]
--- error_code: 200 200 409 403 200 200 401
--- idempotency_status: NEW REPLAYED CONFLICT - NEW NEW -
--- executions: 9

=== TEST 12: mirror: once, and not on a replay
--- config
location / { idempotency zone=z; idempotency_key $request_uri; mirror /mirror; proxy_pass http://backend; }
location = /mirror { internal; idempotency zone=z; idempotency_methods GET POST; proxy_pass http://backend; }
--- request eval: [@{cases(['/mirrored'])}, "POST /mirrored?last=1"]
--- idempotency_status eval: statuses() . 'NEW'
--- executions: 4

=== TEST 13: ... with the body, which is too large there, or without
--- http_config
server { listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1; access_log off; client_max_body_size 3;
         location / { proxy_pass http://backend; } }
--- config
idempotency zone=z;
idempotency_key $request_uri;

location / { mirror /mirror; proxy_pass http://backend; }
location /bare { mirror /mirror/bare; mirror_request_body off; proxy_pass http://backend; }

location /mirror {
    internal;
    proxy_pass http://127.0.0.1:$TEST_NGINX_RAND_PORT_1;

    location /mirror/bare {
        proxy_pass_request_body off;
        proxy_set_header Content-Length "";
        proxy_pass http://127.0.0.1:$TEST_NGINX_RAND_PORT_1;
    }
}
--- request eval: ["POST /with\nbody", "POST /bare\nbody"]
--- idempotency_status: NEW
--- executions: 3
--- error_log
client intended to send too large body: 4 bytes

=== TEST 14: SSI: parts are made each time, and bind nothing; one that fails is no failure of the whole
--- config
idempotency_key $http_idempotency_key;

location / { ssi on; idempotency zone=z; proxy_pass http://backend; }
location = /part { idempotency zone=z; idempotency_methods GET POST; proxy_pass http://backend; }
--- request eval
my $part = '%3C!--%23%20include%20virtual=%22/part?noexec=1%26body=part%22%20--%3E';
[@{cases(["/?ct=text/html&body=[$part|$part]", 200, '^\[part\|part\]$'],
         ['/?ct=text/html&body=' . $part =~ s/body=part/body=part%26status=500/r])}, 'POST /part']
--- more_headers eval: [map "Idempotency-Key: $_", ('parts') x 3, ('fails') x 3, 'part']
--- idempotency_status eval: statuses() . 'NEW'
--- executions: 9

=== TEST 15: addition and post_action: they act on a replay, the record stays; nobody owns a post_action
--- config
idempotency zone=z;
idempotency_key $request_uri;

location / { addition_types *; add_before_body /before; add_after_body /after; proxy_pass http://backend; }
location = /before { proxy_pass http://backend/p?body=before; }
location = /after { proxy_pass http://backend/p?body=after; }
location /action { post_action /then; proxy_pass http://backend; }
location /moved { error_page 404 = @moved; }
location @moved { post_action /then; proxy_pass http://backend; }
location /off { idempotency off; post_action /then; proxy_pass http://backend; }
location = /then { internal; proxy_pass http://backend/then; }
--- request eval
[@{cases(['/?body=-main-', 200, '^before-main-after$'], ['/action'], ['/moved'])}, @{twice('POST /off')}]
--- response_body_like eval: [@{bodies()}, ('^exec') x 2]
--- idempotency_status eval: statuses() . '- -'
--- executions: 16

=== TEST 16: access control of the location that made the response is asked each time, too
--- user_files
>>> dir/index.app
an application
--- config
idempotency zone=z;
idempotency_key $request_uri;
root html;

location / { error_page 404 = @inner; }
location = /uri { error_page 404 = /inner; }
location = /dead { error_page 502 = @inner; proxy_pass http://$TEST_NGINX_DEAD; }
location = /dir/ { index index.app; }
location = /dir/index.app { auth_request /ask; proxy_pass http://backend; }
location = /inner { auth_request /ask; proxy_pass http://backend; }
location @inner { auth_request /ask; error_page 403 = @refused; proxy_pass http://backend; }
location @refused { return 402; }

# made there by others than who was let in: it is the outcome all the same
location = /said { error_page 404 = @said; proxy_intercept_errors on; proxy_pass http://backend/?status=404; }
location @said { auth_request /ask; return 202 said; }
location = /never { error_page 404 = @never; proxy_intercept_errors on; proxy_pass http://backend/?status=404; }
location @never { deny all; }
location = /ask {
    internal;
    proxy_pass http://backend/ask?status=$http_x_may;
    proxy_pass_request_body off;
    proxy_set_header Content-Length "";
}
--- request eval: [map({ ($_) x 3 } 'POST /none', 'POST /uri', 'POST /dead', 'POST /dir/'), @{twice('POST /said', 'POST /never')}]
--- more_headers eval: [("X-May: 204", "X-May: 403", "X-May: 204") x 4, ("X-May: 403") x 4]
--- error_code: 200 402 200 200 403 200 200 402 200 200 403 200 202 202 403 403
--- idempotency_status: NEW - REPLAYED NEW - REPLAYED NEW - REPLAYED NEW - REPLAYED NEW REPLAYED NEW REPLAYED
--- executions: 18
