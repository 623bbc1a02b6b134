# docs/directives.md, "idempotency_missing_key content": two clicks are one
# submit though nobody sends a key. Access control comes first, here as
# elsewhere: see access.t; how long the content counts, see window.t.

use lib 't/lib';
use Test::Nginx::Idempotency 'no_plan';

our $form = 'Content-Type: application/x-www-form-urlencoded';

sub twice { return map { ($_) x 2 } @_ }
sub form { return map "$form\n$_", @_ }

our @addresses = map "X-Forwarded-For: 10.0.0.$_", 1, 2;
our @browsers = ('User-Agent: a', "User-Agent: b\nAccept-Language: de");
our @known = ('Cookie: s=1', 'Authorization: Bearer a', "Authorization: Basic YTpi\nCookie: s=1",
              "X-Api-Key: a\nCookie: s=1");
our @shared = ('Authorization: Basic YTpi', 'X-Api-Key: pk_public', 'X-Tenant: a', 'Authorization: Bearer');

# each of these is somebody else, or something else
our @others = (form('', 'Cookie: s=1', 'Cookie: s=2', 'Authorization: a',
    'Authorization: b', map("Authorization: Basic YTpi\nCookie: s=$_", 1, 2),
    map("X-Api-Key: a\nCookie: s=$_", 1, 2), 'X-Api-Key: a', 'X-Api-Key: b',
    'User-Agent: a', 'User-Agent: b', 'Accept-Language: a',
    map("User-Agent: a\nAccept-Language: $_", 'de', 'fr'), @addresses,
    'X-Forwarded-For: ::ffff:10.0.0.2', 'X-Forwarded-For: 2001:db8::1',
    'Content-Encoding: gzip'), 'Content-Type: text/plain');

our $file = "--x\r\nContent-Disposition: form-data; name=f; filename=f\r\n\r\n"
            . 'x' x 100_000;

our $token = '53b02cbf7064e77ae8a32fb083a9215e734f924768eae958e62aa8d2d47c395a';

run_tests();

__DATA__

=== TEST 1: two clicks are one: the same page or redirect, whole
--- config
large_client_header_buffers 4 16k;
set_real_ip_from 127.0.0.1;
real_ip_header X-Forwarded-For;

idempotency zone=z;
idempotency_missing_key content;
add_header X-Key "[$idempotency_key]" always;
add_header X-Token $idempotency_token always;

location / { proxy_pass http://backend; }
location /busy { idempotency_in_progress reject; proxy_pass http://backend; }
location /ignore { idempotency_ignore_fields csrf; proxy_pass http://backend; }
location /raw { idempotency_normalize off; proxy_pass http://backend; }
location /keep { idempotency_keep 2xx 3xx; proxy_pass http://backend; }
location /down { proxy_pass http://$TEST_NGINX_DEAD; }
location /identity { idempotency_identity $http_x_user; proxy_pass http://backend; }
location /constant { idempotency_identity nobody; proxy_pass http://backend; }
location /scope { idempotency_scope $http_x_scope; proxy_pass http://backend; }
--- request
POST /whole?status=303&h=Location:%20/thanks%3Fn=1&h=X-A:%201&h=X-A:%202
comment=me+too
--- more_headers eval: [form(('') x 20)]
--- error_code: 303
--- response_headers
Location: /thanks?n=1
X-Key: []
--- raw_response_headers_like: X-Token: [0-9a-f]{64}\r
--- idempotency_status eval: 'NEW' . ' REPLAYED' x 19
--- executions: 1

=== TEST 2: without a body, chunked or not, by PATCH, with an empty key
--- request eval
["POST /none", "POST /none", "POST /chunked\na=1", "POST /chunked\n3\r\na=1\r\n0\r\n\r\n",
 "PATCH /patch\na=1", "PATCH /patch\na=1", "POST /empty\na=1", "POST /empty\na=1"]
--- more_headers eval
[form('', '', '', "Transfer-Encoding: chunked", '', '', '', 'Idempotency-Key:')]
--- idempotency_status: NEW REPLAYED NEW REPLAYED NEW REPLAYED NEW REPLAYED

=== TEST 3: the same in another spelling, unless the bytes count; and what is ignored
--- request eval
[map "POST $_", "/spelling\na=1&b=2", "/spelling\nb=2&a=%31",
     "/ignore\na=1&csrf=x", "/ignore\ncsrf=y&a=1",
     "/raw\na=1&b=2", "/raw\nb=2&a=1", "/fields\na=1&csrf=x", "/fields\na=1&csrf=y"]
--- more_headers eval: $::form
--- idempotency_status: NEW REPLAYED NEW REPLAYED NEW NEW NEW NEW

=== TEST 4: who is known may change networks, and what he shows of himself
--- request eval: [map { ("POST /known-$_\na=1") x 4 } 0 .. $#::known]
--- more_headers eval
[map { my $who = $_; form(map "$who\n$_", @::addresses, @::browsers) } @::known]
--- idempotency_status eval: 'NEW REPLAYED REPLAYED REPLAYED ' x @::known

=== TEST 5: ... who has what many may have is not known by it
--- request eval: [map { ("POST /shared-$_\na=1") x 8 } 0 .. $#::shared]
--- more_headers eval
[map { my $who = $_; form((map "$who\n$_", @::addresses, @::browsers) x 2) } @::shared]
--- idempotency_status eval: CORE::join '', ('NEW ' x 4 . 'REPLAYED ' x 4) x @::shared

=== TEST 6: ... a user of an application, too; who is none is another one; a constant is nobody
--- request eval: [("POST /identity\na=1") x 8, ("POST /constant\na=1") x 8]
--- more_headers eval
[form(map("X-User: a\n$_", @::addresses, 'Cookie: s=1', 'Cookie: s=2'),
      'X-User: b', '', 'X-User: b', '',
      @::addresses, @::browsers, map "$_\nCookie: s=1", @::addresses, @::browsers)]
--- idempotency_status eval
'NEW REPLAYED REPLAYED REPLAYED NEW NEW REPLAYED REPLAYED ' . 'NEW ' x 4 . 'REPLAYED ' x 4

=== TEST 7: the order of headers does not count, nor do those that nobody is known by
--- request eval: [("POST /order\na=1") x 4]
--- more_headers eval
[form("Authorization: a\nCookie: s=1", "Cookie: s=1\nAuthorization: a",
      "User-Agent: a\nAccept-Language: de",
      "Accept-Language: de\nUser-Agent: a\nAccept: */*")]
--- idempotency_status: NEW REPLAYED NEW REPLAYED

=== TEST 8: someone else's equal comment is someone else's: by credentials, browser, address, type
--- request
POST /others
comment=me+too
--- more_headers eval: [(@::others) x 2]
--- idempotency_status eval: 'NEW ' x @::others . 'REPLAYED ' x @::others
--- executions: 22

=== TEST 9: another body is another operation, and so is another method, path, file, or other arguments
--- request eval
[("POST /other\na=1", "POST /other\na=2", "POST /other", "PATCH /other\na=1",
  "POST /other2\na=1", "POST /other?x=1\na=1",
  map "POST /other\n$::file$_\r\n--x--", 1, 2) x 2]
--- more_headers eval
[(($::form) x 6, ('Content-Type: multipart/form-data; boundary=x') x 2) x 2]
--- idempotency_status eval: 'NEW ' x 8 . 'REPLAYED ' x 8
--- executions: 8

=== TEST 10: another host and another scope are other operations
--- request
POST /scope
a=1
--- more_headers eval: [(form(map "X-Scope: $_", 'a', 'b', "a\nHost: other")) x 2]
--- idempotency_status: NEW NEW NEW REPLAYED REPLAYED REPLAYED
--- executions: 3

=== TEST 11: a key and the content are two tokens, and a key is bound as ever
--- request eval: [map "POST /beside\na=$_", 1, 1, 1, 1, 2]
--- more_headers eval
[form('', ('Idempotency-Key: beside') x 2, '', 'Idempotency-Key: beside')]
--- error_code: 200 200 200 200 409
--- idempotency_status: NEW NEW REPLAYED REPLAYED CONFLICT
--- executions: 2

=== TEST 12: a malformed key is not a missing one, and GET is not touched
--- request eval: ["POST /malformed", "GET /get", "GET /get"]
--- more_headers eval: ['Idempotency-Key: "x', '', '']
--- error_code: 400 200 200
--- idempotency_status: MALFORMED - -

=== TEST 13: idempotency_in_progress is heeded, and something else is executed meanwhile
--- init
pending(POST => '/busy?id=busy&gate=1', body => 'a=1', type =>
        'application/x-www-form-urlencoded');
--- request eval: ["POST /busy?id=busy&gate=1\na=1", "POST /busy\na=2"]
--- more_headers eval: $::form
--- error_code: 409 200
--- idempotency_status: IN_PROGRESS NEW

=== TEST 14: outcomes bind, or release, as those of keys do
--- request eval
[map "POST $_", twice('/keep?status=500', '/x?status=500', '/down', '/x?close=1',
                      '/x?h=X-Accel-Idempotency:%20release')]
--- error_code: 500 500 500 500 502 502 502 502 200 200
--- idempotency_status: NEW NEW NEW REPLAYED NEW NEW NEW REPLAYED NEW NEW

=== TEST 15: who has no identity gets no Set-Cookie in a replay
--- request: POST /cookie?h=Set-Cookie:%20a=1
--- more_headers eval: ['', '', ('Cookie: s=1') x 2]
--- response_headers eval: ['Set-Cookie: a=1', '! Set-Cookie', ('Set-Cookie: a=1') x 2]
--- idempotency_status: NEW REPLAYED NEW REPLAYED
--- varies: Set-Cookie

=== TEST 16: a key that reads like the token is none
--- request eval: ["POST /token", "POST /token"]
--- more_headers eval: ['', "Idempotency-Key: $::token"]
--- response_headers eval: ["X-Token: $::token", "X-Key: [$::token]"]
--- idempotency_status: NEW NEW

=== TEST 17: a dry run executes both
--- config
location / {
    idempotency zone=z;
    idempotency_missing_key content;
    idempotency_dry_run on;
    proxy_pass http://backend;
}
--- request eval: ["POST /dry", "POST /dry"]
--- idempotency_status: NEW_DRY_RUN REPLAYED_DRY_RUN
--- executions: 2
