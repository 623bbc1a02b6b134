# docs/directives.md, "idempotency_key" and its neighbours: where the key comes
# from, what a well-formed one is, and how far a key reaches.

use lib 't/lib';
use Test::Nginx::Idempotency 'no_plan';

# a request with each of these keys
sub with { return [ map "Idempotency-Key: $_", @_ ] }

our $uuid = '8e03978e-40d5-43dd-bc93-6894a57f9324';

run_tests();

__DATA__

=== TEST 1: a key may be bare or an RFC 8941 string, whose parameters are ignored
--- config
location / {
    idempotency zone=z;
    add_header X-Key "[$idempotency_key]" always;
    proxy_pass http://backend;
}
--- request: POST /same
--- more_headers eval
with('abc', 'abc  ', map "\"abc\"$_", '', '  ', '; v=1', ';v=1', ';v', ';a;b=2',
     '; s="x;\"y"', ';q=0.5', ';t=?1', ';b=:YWJj:', ';tok=*a/b')
--- response_headers: X-Key: [abc]
--- idempotency_status eval: 'NEW' . ' REPLAYED' x 12
--- executions: 1

=== TEST 2: spaces around a header's value are not of the key
--- raw_request eval
join "\r\n", 'POST /spaces HTTP/1.1', 'Host: localhost', 'Connection: close',
             'Idempotency-Key:    spaced   ', '', ''
--- response_headers: X-Key: [spaced]

=== TEST 3: a key is opaque and byte-exact: none of these is another one
--- request: POST /differ
--- more_headers eval
with('abd', 'ABD', 'a b', 'a  b', 'abd;v=1', 'abd"', '"abD"', '" abd"', '"abd "',
     1, '01', '%61', 'a', "\xc3\xa9", "\xc3\xa8", 'a, b')
--- idempotency_status: NEW
--- executions: 16

=== TEST 4: bytes above ASCII, and commas, are but bytes of a bare key
--- request: POST /bytes
--- more_headers eval: with(("\xc3\xaa") x 2, ('a, c') x 2)
--- idempotency_status: NEW REPLAYED NEW REPLAYED

=== TEST 5: escapes in a string are resolved, all else is taken as it is
--- request: POST /escapes
--- more_headers eval: with('"a\"b"', 'a"b', '"a\\\\b"', 'a\b', '"\"\\\\\""', '"a b;c,d"')
--- response_headers eval: [map "X-Key: [$_]", ('a"b') x 2, ('a\b') x 2, '"\"', 'a b;c,d']
--- idempotency_status: NEW REPLAYED NEW REPLAYED NEW NEW

=== TEST 6: what begins as a string, and is none, is malformed
--- request: POST /malformed
--- more_headers eval
with('"abc', '"', '"abc\"', '"abc\\', '"a\bc"', '""', '"a"b', '"a" b', '"a", "b"',
     '"a""b"', "\"\xc3\xa9\"")
--- error_code: 400
--- idempotency_status: MALFORMED
--- executions: 0

=== TEST 7: a control character is malformed, bare or in a string
--- request: POST /control
--- more_headers eval: with("a\tb", "a\x01b", "a\x1fb", "a\x7fb", "\"a\tb\"", "\"a\x7fb\"")
--- error_code: 400
--- idempotency_status: MALFORMED
--- executions: 0

=== TEST 8: several lines of the header are malformed, the same or not
--- request: POST /lines
--- more_headers eval
[map "Idempotency-Key: a\n$_", 'Idempotency-Key: b', 'Idempotency-Key: a',
     'idempotency-key: a', 'Idempotency-Key:']
--- error_code: 400
--- idempotency_status: MALFORMED
--- executions: 0

=== TEST 9: without a key, or with an empty header, nothing is protected
--- request: POST /none
--- more_headers eval: ['', '', 'Idempotency-Key:', 'Idempotency-Key:']
--- idempotency_status: -
--- executions: 4

=== TEST 10: POST and PATCH are protected by default, no other method
--- request eval: [map "$_ /$_", qw(POST PATCH PUT DELETE GET OPTIONS)x 2]
--- more_headers eval
[map "Idempotency-Key: method-$_", qw(POST PATCH PUT DELETE GET OPTIONS) x 2]
--- idempotency_status: NEW NEW - - - - REPLAYED REPLAYED - - - -
--- executions: 10

=== TEST 11: idempotency_methods: what is listed, and nothing else
--- config
location / {
    idempotency zone=z;
    idempotency_methods PUT DELETE;
    proxy_pass http://backend;
}
--- request eval: [map "$_ /$_", qw(PUT DELETE POST PATCH) x 2]
--- more_headers eval: [map "Idempotency-Key: listed-$_", qw(PUT DELETE POST PATCH) x 2]
--- idempotency_status: NEW NEW - - REPLAYED REPLAYED - -

=== TEST 12: a key may be 256 bytes long, without quotes and escapes
--- config
large_client_header_buffers 4 64k;

location / { idempotency zone=z; proxy_pass http://backend; }

location /8 {
    idempotency zone=z;
    idempotency_key_max_length 8;
    proxy_pass http://backend;
}

location /5000 {
    idempotency zone=z;
    idempotency_key_max_length 5000;
    proxy_pass http://backend;
}
--- request: POST /long
--- more_headers eval
with('k' x 256, '"' . 'k' x 256 . '"', 'k' x 255 . 'l',
     'k' . '"' x 255, '"k' . '\"' x 255 . '"', 'k' x 257, '"' . 'k' x 257 . '"')
--- error_code: 200 200 200 200 200 400 400
--- idempotency_status: NEW REPLAYED NEW NEW REPLAYED MALFORMED MALFORMED
--- executions: 3

=== TEST 13: idempotency_key_max_length 8 and 5000
--- request eval: [('POST /8') x 3, ('POST /5000') x 3]
--- more_headers eval
with('12345678', '"12345678"', '123456789', 'k' x 5000, 'k' x 5000, 'k' x 5001)
--- error_code: 200 200 400 200 200 400
--- idempotency_status: NEW REPLAYED MALFORMED NEW REPLAYED MALFORMED
--- executions: 2

=== TEST 14: idempotency_key_format any takes both forms
--- config
location / {
    idempotency zone=z;
    idempotency_key_format any;
    proxy_pass http://backend;
}
--- request: POST /any
--- more_headers eval: with('any', '"any"')
--- idempotency_status: NEW REPLAYED

=== TEST 15: idempotency_key_format sf-string takes strings only, and no empty one
--- config
location / {
    idempotency zone=z;
    idempotency_key_format sf-string;
    proxy_pass http://backend;
}
--- request: POST /string
--- more_headers eval: with('"string"', '"string"', '"string";a=1', 'string', $::uuid, '""')
--- error_code: 200 200 200 400 400 400
--- idempotency_status: NEW REPLAYED REPLAYED MALFORMED MALFORMED MALFORMED
--- response_body_like eval: [ ('exec=1') x 3, ('it must be quoted') x 3 ]
--- executions: 1

=== TEST 16: idempotency_key_format uuid: quoted or not, in upper or lower case, it is one
--- config
location / {
    idempotency zone=z;
    idempotency_key_format uuid;
    add_header X-Key "[$idempotency_key]" always;
    proxy_pass http://backend;
}
--- request: POST /uuid
--- more_headers eval
my $nil = '00000000-0000-0000-0000-000000000000';
with($::uuid, "\"$::uuid\"", (uc $::uuid), '"' . ucfirst(uc $::uuid) . '"', $nil, "\"$nil\"")
--- response_headers eval
[ map "X-Key: [$_]", ($::uuid) x 4, ('00000000-0000-0000-0000-000000000000') x 2 ]
--- idempotency_status: NEW REPLAYED REPLAYED REPLAYED NEW REPLAYED

=== TEST 17: idempotency_key_format uuid: anything else is malformed
--- request: POST /uuid
--- more_headers eval
my $u = $::uuid;
with('abc', substr($u, 0, 35), "${u}0", $u =~ s/.$/g/r, $u =~ s/^./-/r, $u =~ s/-/0/r,
     $u =~ s/-//gr, "{$u}", "urn:uuid:$u")
--- error_code: 400
--- idempotency_status: MALFORMED
--- executions: 0

=== TEST 18: idempotency_missing_key pass is the default
--- config
location / {
    idempotency zone=z;
    idempotency_missing_key pass;
    proxy_pass http://backend;
}
--- request eval: ["POST /pass", "POST /pass"]
--- idempotency_status: -
--- executions: 2

=== TEST 19: idempotency_missing_key reject refuses where the method is listed
--- config
location / {
    idempotency zone=z;
    idempotency_missing_key reject;
    proxy_pass http://backend;
}
--- request eval: ["POST /reject", "POST /reject", "POST /reject", "GET /reject"]
--- more_headers eval: ['', 'Idempotency-Key:', 'Idempotency-Key: there', '']
--- error_code: 400 400 200 200
--- idempotency_status: MISSING MISSING NEW -
--- executions: 2

=== TEST 20: idempotency_key: the first source that is not empty, whichever it is
--- config
location / {
    idempotency zone=z;
    idempotency_key $http_idempotency_key $arg_k $cookie_k $http_x_request_id;
    idempotency_identity me;
    idempotency_missing_key reject;
    proxy_pass http://backend;
}
--- request: POST /first
--- more_headers eval
["Idempotency-Key: k",
 "X-Request-ID: k",
 "Cookie: a=1; k=k",
 "Idempotency-Key: k\nX-Request-ID: k",
 "Idempotency-Key: k\nX-Request-ID: other",
 "Idempotency-Key:\nX-Request-ID: k",
 "Idempotency-Key: other\nX-Request-ID: k",
 'Idempotency-Key: "k"',
 'X-Request-ID: "k"']
--- idempotency_status eval: 'NEW' . ' REPLAYED' x 5 . ' NEW REPLAYED REPLAYED'
--- executions: 2

=== TEST 21: idempotency_key: if the first is malformed, no other is tried
--- request: POST /second
--- more_headers eval
["Idempotency-Key: \"k\nX-Request-ID: k2",
 "Idempotency-Key: \"\"\nX-Request-ID: k2",
 "X-Request-ID: a\nX-Request-ID: b",
 '']
--- error_code: 400
--- idempotency_status: MALFORMED MALFORMED MALFORMED MISSING
--- executions: 0

=== TEST 22: idempotency_key: an argument is taken as it is, not decoded
--- request eval: [map "POST /argument?k=$_", qw(arg arg "arg2" "arg2" a%20b a%20b %22a)]
--- idempotency_status: NEW REPLAYED NEW REPLAYED NEW REPLAYED NEW

=== TEST 23: idempotency_key: a key in parts is another if one of them is
--- config
location / {
    idempotency zone=z;
    idempotency_key "$http_x_part/$http_x_request_id";
    proxy_pass http://backend;
}
--- request: POST /parts
--- more_headers eval
["X-Part: a\nX-Request-ID: 1", "X-Request-ID: 1\nX-Part: a",
 "X-Part: b\nX-Request-ID: 1", "X-Part: a\nX-Request-ID: 2",
 "Idempotency-Key: 3", "Idempotency-Key: 4"]
--- idempotency_status: NEW REPLAYED NEW NEW - -

=== TEST 24: idempotency_key: a key in parts that are all empty is none, whatever stands around them
--- config
location / {
    idempotency zone=z;
    idempotency_key "$http_x_a-${http_x_b}-" "<$idempotency_field_c>" $arg_d;
    idempotency_missing_key reject;
    add_header X-Key "[$idempotency_key]" always;
    proxy_pass http://backend;
}
location ~ ^/captured(/x)?(.*) {
    idempotency zone=z;
    idempotency_key "$1-$2-";
    idempotency_missing_key reject;
    add_header X-Key "[$idempotency_key]" always;
    proxy_pass http://backend;
}
--- request eval
["POST /empty", "POST /empty?d=d", "POST /empty?d=d\nc=c", ("POST /empty") x 2, 'POST /captured', 'POST /captured/y']
--- more_headers eval
['', '', 'Content-Type: application/x-www-form-urlencoded', "X-A:\nX-B: b", "X-A: --\nX-B: ", '', '']
--- response_headers eval: [ map "X-Key: [$_]", '', 'd', '<c>', '-b-', '----', '', '-/y-' ]
--- idempotency_status: MISSING NEW NEW NEW NEW MISSING NEW

=== TEST 25: idempotency_key: a path, decoded by nginx, may have control characters
--- config
location / { idempotency zone=z; idempotency_key $uri; proxy_pass http://backend; }
--- request eval: [map "POST /$_", qw(path path a%01b a%0ab a%7Fb)]
--- error_code: 200 200 400 400 400
--- idempotency_status: NEW REPLAYED MALFORMED MALFORMED MALFORMED
--- executions: 1

=== TEST 26: idempotency_scope: a server, unless said otherwise
--- http_config
server {
    listen 127.0.0.1:$TEST_NGINX_CLIENT_PORT;
    server_name other;
    location / { idempotency zone=z; proxy_pass http://backend; }
}
--- config
location / { idempotency zone=z; proxy_pass http://backend; }
--- request: POST /x
--- more_headers eval
[map "Host: $_\nIdempotency-Key: scope", qw(localhost other localhost other)]
--- idempotency_status: NEW NEW REPLAYED REPLAYED

=== TEST 27: idempotency_scope: all locations of a server share its keys
--- request eval: ["POST /x", "POST /y"]
--- more_headers: Idempotency-Key: scope2
--- error_code: 200 409
--- idempotency_status: NEW CONFLICT

=== TEST 28: idempotency_scope all
--- config
idempotency_scope all;

location / { idempotency zone=z; proxy_pass http://backend; }

location /tenant {
    idempotency zone=z;
    idempotency_scope "$http_x_part";
    proxy_pass http://backend;
}
--- request: POST /x
--- more_headers eval: [map "Idempotency-Key: scope3\nX-Part: $_", qw(a b)]
--- idempotency_status: NEW REPLAYED

=== TEST 29: idempotency_scope for each tenant
--- request: POST /tenant
--- more_headers eval: [map "Idempotency-Key: scope4\nX-Part: $_", qw(a b a b)]
--- idempotency_status: NEW NEW REPLAYED REPLAYED

=== TEST 30: idempotency_scope: where it ends and the key begins is no matter of taste
--- request: POST /tenant
--- more_headers eval
["X-Part: xy\nIdempotency-Key: z", "X-Part: x\nIdempotency-Key: yz",
 "X-Part: xyz\nIdempotency-Key:", "X-Part:\nIdempotency-Key: xyz"]
--- idempotency_status: NEW NEW - NEW
