# docs/requests.md 1, and docs/directives.md, idempotency_bypass and
# idempotency_dry_run: what is left untouched.

use lib 't/lib';
use Test::Nginx::Idempotency 'no_plan';

run_tests();

__DATA__

=== TEST 1: any value but an empty one and 0 bypasses, any of several values as well
--- config
idempotency zone=z;

location / { idempotency_bypass $arg_no $http_x_bypass; proxy_pass http://backend; }
location /never { idempotency_bypass 0 "" $arg_nothing; proxy_pass http://backend; }
location /always { idempotency_bypass 1; idempotency_missing_key reject; proxy_pass http://backend; }
location /get {
    idempotency_methods GET POST;
    proxy_http_version 1.1;
    proxy_set_header Upgrade $http_upgrade;
    proxy_set_header Connection upgrade;
    proxy_pass http://backend;
}

location /off {
    idempotency off;
    proxy_pass http://backend;
    location /off/on { idempotency zone=z; proxy_pass http://backend; }
}

location /upgrade {
    proxy_http_version 1.1;
    proxy_set_header Upgrade $http_upgrade;
    proxy_set_header Connection upgrade;
    proxy_pass http://backend;
}
--- request eval: [ map { ("POST /1?no=$_\nb") x 2 } '', 0, 1, '00', 'no', '', 1, 0 ]
--- more_headers eval
[ map { ("Idempotency-Key: 1-$_\nX-Bypass: " . ('', '', '', '', '', 1, 0, 0)[$_]) x 2 } 0 .. 7 ]
--- idempotency_status eval: 'NEW REPLAYED ' x 2 . 'BYPASS ' x 10 . 'NEW REPLAYED'
--- executions: 13

=== TEST 2: who bypasses claims nothing, replays nothing and conflicts with nothing
--- request eval: [ ("POST /2?id=2\nb") x 3, "POST /2?id=2\nother", "POST /2?id=2\nb" ]
--- more_headers eval: [ map { "Idempotency-Key: 2\nX-Bypass: $_" } 1, 0, 1, 1, 0 ]
--- idempotency_status: BYPASS NEW BYPASS BYPASS REPLAYED
--- response_body eval: [ map { "exec=$_ id=2\n" } 1, 2, 3, 4, 2 ]

=== TEST 3: constants; who bypasses needs no key, and none is looked at
--- request eval: [ ("POST /always") x 4, ("POST /never") x 2 ]
--- more_headers eval: [ '', map { "Idempotency-Key: $_" } '"', (3) x 4 ]
--- idempotency_status: BYPASS BYPASS BYPASS BYPASS NEW REPLAYED
--- executions: 5

=== TEST 4: off, and on again below
--- request eval: [ ("POST /off\nb") x 3, ("POST /off/on\nb") x 2 ]
--- more_headers eval: [ map { "Idempotency-Key: $_" } 4, 4, '"', 4, 4 ]
--- idempotency_status: - - - NEW REPLAYED
--- executions: 4

=== TEST 5: other methods are nobody's business, nor is their key
--- request eval: [ ("GET /5") x 3, ("HEAD /5") x 2, ("PUT /5\nb") x 2, ("GET /get") x 2 ]
--- more_headers eval: [ map { "Idempotency-Key: $_" } 5, 5, '"', (5) x 6 ]
--- idempotency_status: - - - - - - - NEW REPLAYED
--- executions: 8

=== TEST 6: a GET with the key of a POST is neither its replay nor a conflict
--- request eval: [ map { "$_ /?id=6" } qw(POST GET POST) ]
--- more_headers: Idempotency-Key: 6
--- idempotency_status: NEW - REPLAYED
--- response_body eval: [ map { "exec=$_ id=6\n" } 1, 2, 1 ]

=== TEST 7: a protocol upgrade is one that Connection names, of a GET
--- request: GET /get/upgrade
--- more_headers eval
[ map { "Idempotency-Key: 7\n$_" }
      ("Upgrade: websocket\nConnection: close, Upgrade") x 2, '', '', 'Upgrade: websocket' ]
--- idempotency_status: - - NEW REPLAYED REPLAYED
--- executions: 3

=== TEST 8: what any client may offer, and nginx does not take up, is no upgrade
--- request eval: [ map { ("POST $_\nb") x 8 } '/', '/upgrade' ]
--- more_headers eval
[ map { my $where = $_;
        map { ("Idempotency-Key: 8-$where-$_\nConnection: close, Upgrade\nUpgrade: $_") x 2 }
            'h2c', 'H2C', 'TLS/1.2', 'tls/1.0, HTTP/1.1' } 1, 2 ]
--- idempotency_status eval: 'NEW REPLAYED ' x 8
--- executions: 8

=== TEST 9: no subrequest of a page is held, replayed or refused
What was recorded is the page and not its parts: SSI acts on a replay, too.
--- config
idempotency zone=z;
idempotency_methods GET POST;
ssi on;
ssi_types text/plain;
add_header X-Status $idempotency_status;

location / { root html; }
location /free { idempotency off; root html; }
location /part { proxy_pass http://backend; }
--- user_files
>>> page
<!--# include virtual="/part?id=10" wait="yes" --><!--# include virtual="/part?id=10" -->
>>> free
<!--# include virtual="/part?id=10" -->
--- request eval: [ ("GET /page") x 2, ("GET /free") x 2 ]
--- more_headers: Idempotency-Key: 10
--- response_headers eval: [ 'X-Status: NEW', 'X-Status: REPLAYED', ('! X-Status') x 2 ]
--- response_body eval
[ map { my $i = $_; CORE::join '', map({ "exec=$_ id=10\n" } @$i), "\n" }
      [ 1, 2 ], [ 3, 4 ], [ 5 ], [ 6 ] ]

=== TEST 10: a mirror's copy is made each time that a request is executed
--- config
idempotency zone=z;
mirror /copy;

location / { proxy_pass http://backend; }
location /off { idempotency off; proxy_pass http://backend; }
location /copy { internal; proxy_pass http://backend; }
--- request eval: [ ("POST /11\nb") x 2, ("POST /off\nb") x 2 ]
--- more_headers: Idempotency-Key: 11
--- idempotency_status: NEW REPLAYED - -
--- executions: 6

=== TEST 11: auth_request asks each time, also for a replay
--- config
idempotency zone=z;
idempotency_methods GET POST;

location / { auth_request /auth; proxy_pass http://backend; }

location = /auth {
    internal;
    proxy_pass_request_body off;
    proxy_set_header Content-Length "";
    proxy_pass http://backend;
}
--- request
POST /
b
--- more_headers eval: [ ('Idempotency-Key: 12') x 2 ]
--- idempotency_status: NEW REPLAYED
--- executions: 3

=== TEST 12: a dry run says what would be, and executes each time
--- config
location / {
    idempotency zone=z;
    idempotency_dry_run on;
    idempotency_bypass $arg_no;
    idempotency_missing_key reject;
    idempotency_keep 2xx;
    proxy_pass http://backend;
    location /small { idempotency_max_response 4; proxy_pass http://backend; }
}
--- request eval
[ map({ "POST $_" } ("/13?echo=1\nb") x 3, "/13?echo=1\nother",
      ("/13?echo=1\nb") x 2, "/13?no=1&echo=1\nb", ("/small?echo=1\nb") x 2,
      ("/13?status=500&echo=1\nb") x 2), "GET /13?echo=1\nb" ]
--- more_headers eval
[ map { "Idempotency-Key: $_" } (13) x 4, '"', '', 13, ('13-1') x 2,
                                ('13-2') x 2, 13 ]
--- idempotency_status eval
CORE::join ' ', map({ $_ . '_DRY_RUN' } qw(NEW REPLAYED REPLAYED CONFLICT MALFORMED
    MISSING BYPASS NEW NOT_KEPT NEW NEW)), '-'
--- error_code: 200 200 200 200 200 200 200 200 200 500 500 200
--- response_headers: ! Idempotent-Replayed
--- response_body_like eval: [ map { "\n\n$_\\z" } ('b') x 3, 'other', ('b') x 8 ]
--- executions: 12

=== TEST 13: where a request is sent on to, a field for its bypass is looked for by the settings there
--- config
location / {
    idempotency zone=z;
    try_files /none @there;
}

location @there {
    idempotency zone=z;
    idempotency_normalize_buffer 1k;
    idempotency_bypass $idempotency_field_pass;
    proxy_pass http://backend;
}
--- request eval
[map "POST /sent-on\n$_", ('pass=yes') x 2, ('x=' . 'x' x 2000 . '&pass=yes') x 2]
--- more_headers eval
[map "Content-Type: application/x-www-form-urlencoded\nIdempotency-Key: $_",
     ('sent-on') x 2, ('sent-on-2') x 2]
--- error_code: 200
--- idempotency_status: BYPASS BYPASS NEW REPLAYED

=== TEST 14: on anything else an upgrade that is offered switches nothing off
--- config
location / {
    idempotency zone=z;
    idempotency_methods POST PUT DELETE;
    proxy_pass http://backend;
}

location /reject {
    idempotency zone=z;
    idempotency_missing_key reject;
    proxy_pass http://backend;
}
--- request eval
[(map { ("$_ /offered-$_\nb") x 2 } qw(POST PUT DELETE)), "POST /reject\nb"]
--- more_headers eval
my $offer = "Connection: close, Upgrade\nUpgrade: x";
[(map { ("Idempotency-Key: offered-$_\n$offer") x 2 } 1 .. 3), $offer]
--- idempotency_status: NEW REPLAYED NEW REPLAYED NEW REPLAYED MISSING
--- executions: 3
