# docs/variables.md, $idempotency_field_NAME: a field of the request's body, so that
# the key may travel in a form.  t/lib/Bodies.pm says how a table of bodies reads.

use lib 't/lib';
use Test::Nginx::Idempotency 'no_plan';
use Bodies;

our $form = 'application/x-www-form-urlencoded';
our $json = 'application/json';
our $uuid = '8e03978e-40d5-43dd-bc93-6894a57f9324';

sub form { return multipart('xxx', @_) }

# the three kinds of body with these fields

sub kinds {
    my @fields = @_;

    return [ $form, join '&', map "$_->[0]=$_->[1]", @fields ],
           [ $json, '{' . join(',', map "\"$_->[0]\":\"$_->[1]\"", @fields) . '}' ],
           form(map part(@$_), @fields);
}

our @abc = kinds([ tok => 'abc' ]);
our @several = kinds([ shop => 's' ], [ tok => 'abc' ]);

# what a part with the key may be followed by, though it is no end of a form

our @ends = map [ 'multipart/form-data; boundary=xxx',
                  "--xxx\r\n" . part(tok => 'abc') . "\r\n--xxx\r\n" . part(b => 1)
                  . "\r\n$_" ],
            '--xxx--x', "--xxx\n", '--xxx-x', "--xxx\r\nX-Y: z\r\n", '--xx', '',
            "--xxx\r\nfolded\r\n name\r\n\r\nz\r\n--xxx--";

# values that would end a line of a header, or are no text

our @controls = map { my $c = $_;
                      [ $form, sprintf 'tok=a%%%02xX-Evil: b', ord $c ],
                      [ $json, sprintf '{"tok":"a\\u%04xX-Evil: b"}', ord $c ],
                      form(part(tok => "a${c}X-Evil: b"))
                } "\r", "\n", "\0", "\t", "\x7f", "\e";

run_tests();

__DATA__

=== TEST 1: a form's field is the key, its first one, in any letter case
--- config
idempotency zone=z;
idempotency_scope $arg_row;
idempotency_key $http_idempotency_key $idempotency_field_tok;
idempotency_ignore_fields tok;
add_header X-Key "[$idempotency_key]" always;

location / { proxy_pass http://backend; }
location /reject { idempotency_missing_key reject; proxy_pass http://backend; }
location /content { idempotency_missing_key content; proxy_pass http://backend; }
location /raw { idempotency_normalize off; proxy_pass http://backend; }
location /small { idempotency_normalize_buffer 100; proxy_pass http://backend; }
location /field {
    idempotency_key $idempotency_field_tok;
    idempotency_normalize_buffer 100;
    proxy_pass http://backend;
}
location /file { client_body_in_file_only clean; proxy_pass http://backend; }
--- more_headers: Content-Type: application/x-www-form-urlencoded
--- bodies
tok=abc
a=1&tok=abc&b=2
&&tok=abc
t%6Fk=a%62c
tok=abc&tok=def
TOK=abc
Tok=abc
xtok=1&tok2=2&tok=abc
--- key: abc

=== TEST 2: a member of a JSON object is
--- more_headers: Content-Type: application/json
--- bodies
{"tok":"abc"}
{ "a":[{"tok":1}],<0a>"tok" : "abc"}
{"\u0074ok":"\u0061bc"}
{"tok":"abc","tok":"def"}
{"Tok":"abc"}
--- key: abc

=== TEST 3: a part of a multipart form is, behind files and before them
--- uri: / /small
--- bodies eval
[ form(part(tok => 'abc')), form(part(Tok => 'abc')),
  form(part(tok => 'abc'), part(tok => 'def')),
  form(part(f => 'x' x 300_000, file => 'x'), part(tok => 'abc')),
  form(part(tok => 'abc'), part(f => 'x' x 3_000_000, file => 'x')) ]
--- key: abc

=== TEST 4: however a body comes, whatever is normalised, wherever it lies
--- uri: / /raw /file
--- framing: 0 1 2 3 4 5 100000
--- bodies eval
[ @::abc, [ "$::form; charset=utf-8", 'tok=abc' ], [ 'application/x+json', '{"tok":"abc"}' ],
  [ $::form, 'tok=abc', 'identity' ], form(part(a => 1), part(tok => 'abc')) ]
--- key: abc

=== TEST 5: a form is decoded
--- more_headers: Content-Type: application/x-www-form-urlencoded
--- bodies
tok=a+b%2Bc=d%26e
--- key: a b+c=d&e

=== TEST 6: a multipart form is not
--- bodies eval: [ form(part(tok => 'a%20b+c')) ]
--- key: a%20b+c

=== TEST 7: JSON's numbers, true and false are keys as they are written
--- request eval: [map { ("POST /?row=$_\n{\"tok\":$_}") x 2 } qw(42 true false)]
--- more_headers: Content-Type: application/json
--- response_headers eval: [map { ("X-Key: [$_]") x 2 } qw(42 true false)]
--- idempotency_status eval: 'NEW REPLAYED ' x 3

=== TEST 8: bodies without the field, or with one that is empty, have no key
--- framing: both
--- bodies eval
[ '', [ $::json, " \n" ], [ $::json, '' ], [ 'multipart/form-data; boundary=x', '' ],
  'tok=abc', [ 'text/plain', 'tok=abc' ], [ 'text/json', '{"tok":"a"}' ],
  [ 'application/octet-stream', 'tok=abc' ],
  [ 'application/octet-stream', 'tok=abc', 'gzip' ],
  map([ $::form, $_ ], 'a=tok&b=1', 'tok=', 'tok', 'tok2=abc',
      '%tok=abc', 'tok%=abc', 'a=1&tok%4=abc'),
  map([ $::json, $_ ], '{"a":"tok"}', '{"a":{"tok":1}}', '{"tok":null}',
      '{"tok":""}', '{"tok":{}}', '{"tok":["a"]}', '["tok","abc"]', '{"a":01}'),
  map(form($_), part(a => 'tok'), part(tok => ''), part(tok => 'abc', file => 'tok'),
      part(tok => 'abc', file => '')),
  [ 'multipart/mixed; boundary=xxx', "--xxx\r\n\r\n\r\n--xxx--" ] ]
--- key: MISSING

=== TEST 9: what is wrong elsewhere in a body does not matter, however it came
--- uri: / /file
--- framing: 0 1
--- bodies eval
[ map([ $::form, $_ ], 'a=%zz&tok=abc', 'tok=abc&a=%zz', 'tok=abc&a=%4'),
  map([ $::json, $_ ], '{"tok":"abc",}', '{"tok":"abc"', '{"a":"\ud83d","tok":"abc"}',
      '{"tok":"abc","a":"\ud83d"}', '{"a":["\ude00"],"tok":"abc"}',
      "\xef\xbb\xbf{\"tok\":\"abc\"}", "{\"a\":\"\xff\",\"tok\":\"abc\"}",
      '{"a":' . '[' x 300 . ']' x 300 . ',"tok":"abc"}') ]
--- key: abc

=== TEST 10: ... nor how many fields it has
--- uri: / /file
--- framing: 0 1000
--- bodies eval
[ [ $::json, '{' . '"a":1,' x 17_000 . '"tok":"abc"}' ],
  [ $::form, 'a&' x 33_000 . 'tok=abc' ] ]
--- key: abc

=== TEST 11: ... nor how a multipart form ends, nor where it is cut
--- uri: / /file
--- framing: 0 1 7 80
--- bodies eval: \@::ends
--- key: abc

=== TEST 12: ... nor how large it is
--- uri: / /small
--- bodies eval
[ map({ my $x = 'x' x $_;
        ([ $::form, "a=$x&tok=abc" ], [ $::json, "{\"a\":\"$x\",\"tok\":\"abc\"}" ]) }
      100_000, 1_500_000),
  form(part(f => 'x' x 3_000_000, file => 'x'), part(tok => 'abc')),
  form((map part("f$_" => 'x' x 1000), 1 .. 1200), part(tok => 'abc')) ]
--- key: abc

=== TEST 13: half a surrogate pair in a key stands for itself
--- request eval: ['POST /?row=surrogate' . "\n" . '{"tok":"x\ud83d"}']
--- more_headers: Content-Type: application/json
--- response_headers eval: "X-Key: [x\xed\xa0\xbd]"

=== TEST 14: where nobody can tell whether there is a key a request is refused
--- bodies eval
[ [ $::form, 'tok=abc', 'gzip' ], [ $::json, '{"tok":"abc"}', 'br' ],
  [ @{form(part(tok => 'abc'))}, 'GZIP' ],
  [ $::form, 'a=1', "identity\nContent-Encoding: x" ],
  map([ $::form, $_ ], 'tok=%zz', 'tok=ab%6', 'tok=' . 'x' x 1_048_577),
  map([ $::json, $_ ], '{"a":1', '{"tok":"ab', '{tok:"abc"}',
      "\xff\xfe{\0\"\0t\0o\0k\0", 'tok=abc'),
  map([ "multipart/form-data$_->[0]", $_->[1] ], [ '', 'tok' ], [ '; boundary=y', '--xxx' ],
      [ '; boundary=x', "--x\r\n" . part(tok => 'abc') . "\r\n" ],
      [ '; boundary=x', "--x\n" . part(tok => 'abc') . "\n--x--\n" ]),
  form(part('tok"; name="b' => 'abc')) ]
--- key: UNREADABLE

=== TEST 15: a value longer than the buffer and 64k is too large
--- request eval: [map "POST /small?row=long\ntok=" . 'x' x $_, 65_536, 65_537]
--- more_headers: Content-Type: application/x-www-form-urlencoded
--- idempotency_status: MALFORMED
--- response_body_like eval: ['key is malformed: it is too long', 'too large']

=== TEST 16: malformed keys
--- bodies eval
[ map([ $::form, "tok=$_" ], '%22abc', '%22%22', 'a%0Ab', 'a%00b', 'a%7fb', 'x' x 257),
  [ $::json, '{"tok":"a\tb"}' ], form(part(tok => "a\r\nb")) ]
--- key: MALFORMED

=== TEST 17: ... a malformed header wins, too
--- request
POST /?row=header
tok=abc
--- more_headers eval: [map "Content-Type: $::form\nIdempotency-Key: $_", '"a', "a\nIdempotency-Key: b"]
--- error_code: 400
--- idempotency_status: MALFORMED

=== TEST 18: a quoted key is an RFC 8941 string
--- bodies eval
[ [ $::form, 'tok=%22a%5C%22b%22' ], [ $::json, '{"tok":"\"a\\\\\\"b\""}' ],
  [ $::json, '{"tok":"a\"b"}' ] ]
--- key: a"b

=== TEST 19: bytes above ASCII, and 256 bytes
--- request eval: ["POST /?row=above\n" . '{"tok":"\u00e9"}', "POST /?row=256\n{\"tok\":\"" . 'x' x 256 . '"}']
--- more_headers: Content-Type: application/json
--- response_headers eval: ["X-Key: [\xc3\xa9]", 'X-Key: [' . 'x' x 256 . ']']

=== TEST 20: a header wins if it stands first and is not empty
--- request eval: [map "POST /?row=wins\n$_", ('tok=abc') x 2, ('a=1') x 2]
--- more_headers eval: [map "Content-Type: $::form\nIdempotency-Key: $_", '', '', 'h', 'h']
--- response_headers eval: [map "X-Key: [$_]", qw(abc abc h h)]
--- idempotency_status: NEW REPLAYED NEW REPLAYED

=== TEST 21: one key by two ways is one key, and the field is not a part of the comparison
--- request eval: [map "POST /?row=one\n$_", 'a=1', 'a=1&tok=abc', 'tok=%22abc%22&a=1', 'tok=abc&a=2']
--- more_headers eval: [map "Content-Type: $::form$_", "\nIdempotency-Key: abc", '', '', '']
--- idempotency_status: NEW REPLAYED REPLAYED CONFLICT
--- error_code: 200 200 200 409

=== TEST 22: the key is found, whether a body goes by its meaning or, larger, by its bytes
--- uri: /field
--- framing: both
--- bodies eval
[ map { my ($type, $one, $two) = @$_;
        [ [ $type, $one ], '==', [ $type, $one ],
          length $one == 100 ? '==' : '!=', [ $type, $two ] ] }
  map({ [ $::form, "tok=abc&b=1&a=$_", "a=$_&b=1&tok=abc" ] } 'x' x 86, 'x' x 87),
  map({ [ $::json, "{\"tok\":\"abc\",\"a\":\"$_\"}", "{\"a\":\"$_\",\"tok\":\"abc\"}" ] }
      'x' x 80, 'x' x 81) ]

=== TEST 23: idempotency_missing_key content: by the content without the field, by the key with it
--- request eval: [map "POST /content?row=content\n$_", ('a=1') x 2, ('tok=abc&a=1') x 2]
--- more_headers eval: "Content-Type: $::form"
--- idempotency_status: NEW REPLAYED NEW REPLAYED

=== TEST 24: a request that is refused for its body has been read: the connection goes on
--- pipelined_requests eval: ["POST /reject?row=read\na=1", "POST /reject?row=read\ntok=1"]
--- more_headers eval: "Content-Type: $::form"
--- error_code eval: [400, 200]
--- response_body_like eval: ['missing', 'exec']

=== TEST 25: a method that is not listed is not looked at
--- request
PUT /reject?row=put
a=1
--- more_headers eval: "Content-Type: $::form"
--- idempotency_status: -

=== TEST 26: in a name '_' stands for any byte that is no letter or digit, and letter case for none
--- http_config
map $idempotency_field_tok $mapped { default "<$idempotency_field_tok>"; }
map $idempotency_field_tok $as_it_is { default $idempotency_field_tok; }
map $idempotency_field_tok $early { default "<$idempotency_field_tok>"; }
--- config
idempotency zone=z;
idempotency_scope $arg_row;
add_header X-Key "[$idempotency_key]" always;

location / {
    idempotency_key $idempotency_field_tok $idempotency_field_order_id
                    "${idempotency_field_shop}/$arg_order";
    idempotency_missing_key reject;
    proxy_pass http://backend;
}
location /first {
    idempotency_key $idempotency_field_tok $http_idempotency_key;
    proxy_pass http://backend;
}
location /three {
    idempotency_key "$idempotency_field_tok$idempotency_field_shop$arg_x";
    proxy_pass http://backend;
}
location /map { idempotency_key $idempotency_field_none $mapped; proxy_pass http://backend; }
location /map_alone { idempotency_key $mapped; proxy_pass http://backend; }
location /as_it_is { idempotency_key $as_it_is; proxy_pass http://backend; }
location /uuid {
    idempotency_key $idempotency_field_tok;
    idempotency_key_format uuid;
    proxy_pass http://backend;
}
location /case { idempotency_key $idempotency_field_Tok $http_idempotency_key; proxy_pass http://backend; }
location /header { proxy_pass http://backend; }
location /early {
    idempotency_key $idempotency_field_tok;
    set $seen "$idempotency_field_tok";
    set $seen_by_map $early;
    add_header X-Seen "[$seen][$seen_by_map][$idempotency_field_tok]" always;
    proxy_pass http://backend;
}
location /off {
    idempotency off;
    add_header X-Seen
        "[$idempotency_field_tok][$idempotency_field_shop][$idempotency_field_none]" always;
    proxy_pass http://backend;
}
location /upstream {
    proxy_set_header X-Token $idempotency_field_tok;
    add_header X-Seen "[$idempotency_field_tok]" always;
    proxy_pass http://backend;
}
--- bodies eval
[ map({ my $name = $_;
        (kinds([ $name => 'abc' ]))[1, 2],
        [ $::form, ($name =~ s/([^\w.-])/sprintf '%%%02x', ord $1/ger) . '=abc' ] }
      qw(order_id order-id order.id Order-Id ORDER_ID orDer[id order/id), 'order id') ]
--- key: abc

=== TEST 27: ... so these are other names, and the last source is taken
--- request eval: [map { ("POST /?order=1&row=$_\n$_=abc") x 2 } qw(orderid order1id orderxid order_id_ order__id)]
--- more_headers eval: "Content-Type: $::form"
--- response_headers: X-Key: [/1]
--- idempotency_status eval: 'NEW REPLAYED ' x 5

=== TEST 28: the first field that is there, a part of a value, several in one
--- request eval
[map { my $k = $_; map { ("POST $k->[0]row=$k->[1]\n$_") x 2 } $k->[2] }
 ['/?', 1, 'order_id=abc'], ['/?', 2, 'order_id=def&tok=abc'], ['/?', 3, 'shop=s'],
 ['/three?', 4, 'shop=s&tok=abc'], ['/map?', 5, 'tok=abc'], ['/map_alone?', 6, 'tok=abc'],
 ['/first?', 7, 'tok=abc'], ['/first?', 8, 'a=abc']]
--- more_headers eval: "Content-Type: $::form\nIdempotency-Key: h"
--- response_headers eval: [map { ("X-Key: [$_]") x 2 } qw(abc abc s/ abcs <abc> <abc> abc h)]
--- idempotency_status eval: 'NEW REPLAYED ' x 8

=== TEST 29: what comes behind a field that can't be read is not asked, but a header alone is
--- request eval
[map "POST $_\ntok=abc", qw(/first?row=behind /three?row=behind&x=1 /as_it_is?row=behind /case?row=behind /header)]
--- more_headers eval: "Content-Type: $::form\nContent-Encoding: gzip\nIdempotency-Key: behind"
--- idempotency_status: MALFORMED MALFORMED MALFORMED MALFORMED NEW
--- executions: 1

=== TEST 30: idempotency_key_format is that of fields, too
--- request eval: [map "POST /uuid?row=uuid\ntok=$_", 'abc', $::uuid, $::uuid]
--- more_headers eval: "Content-Type: $::form"
--- idempotency_status: MALFORMED NEW REPLAYED
--- error_code: 400 200 200

=== TEST 31: empty before the body has been read, there afterwards
--- request
POST /early?row=early
tok=abc
--- more_headers eval: "Content-Type: $::form"
--- response_headers: X-Seen: [][<>][abc]
--- idempotency_status: NEW

=== TEST 32: one look at the body for all of them, where nothing is protected
--- request eval: [(map "POST /off\n$_->[1]", @::several), 'GET /off']
--- more_headers eval: [(map "Content-Type: $_->[0]\nContent-Length: " . length $_->[1], @::several), '']
--- response_headers eval: [('X-Seen: [abc][s][]') x 3, 'X-Seen: [][][]']
--- idempotency_status: -

=== TEST 33: ... at the beginning of more than the buffer, not behind it, nor cut at its end
--- request eval
[map "POST /off\n$_", 'tok=abc&a=' . 'x' x 1_200_000, 'a=' . 'x' x 1_200_000 . '&tok=abc',
 'a=' . 'x' x 1_048_567 . '&tok=abc']
--- more_headers eval: "Content-Type: $::form"
--- response_headers eval: ['X-Seen: [abc][][]', ('X-Seen: [][][]') x 2]

=== TEST 34: the upstream may be told
--- request
POST /upstream?echo=1
tok=a%20b
--- more_headers eval: "Content-Type: $::form"
--- response_body_like: X-Token: a b\n

=== TEST 35: ... but not a value with control characters, which could end its line
--- request eval: [map "POST /upstream?echo=1\n$_->[1]", @::controls]
--- more_headers eval: [map "Content-Type: $_->[0]", @::controls]
--- response_headers: X-Seen: []
--- response_body_unlike: X-Token
--- idempotency_status: -

=== TEST 36: ... as a key it is malformed, whatever stands behind it; another field may have line ends
--- request eval
[map "POST $_", "/first?row=line\ntok=a%0d%0ab", "/three?row=line\ntok=x&shop=%7f",
 "/first?row=line\ntok=abc&shop=a%0d%0ab", "/as_it_is?row=line\nshop=a%0d%0ab"]
--- more_headers eval: "Content-Type: $::form\nIdempotency-Key: line"
--- idempotency_status: MALFORMED MALFORMED NEW -
--- error_code: 400 400 200 200

=== TEST 37: a name that only a page has
--- http_config
server {
    listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1;
    default_type text/html;
    location / { return 200 '[<!--# echo var="idempotency_field_shop" default="" -->]'; }
}
--- config
idempotency zone=z;
idempotency_key $idempotency_field_tok;
idempotency_scope ssi$uri$content_type;
ssi on;
location / { proxy_pass http://127.0.0.1:$TEST_NGINX_RAND_PORT_1; }
location /off { idempotency off; proxy_pass http://127.0.0.1:$TEST_NGINX_RAND_PORT_1; }
--- request eval: [map { my $b = $_; map "POST $_\n$b->[1]", '/', '/off' } @::several, kinds([ a => 1 ])]
--- more_headers eval
[map { ("Content-Type: $_->[0]\nContent-Length: " . length $_->[1]) x 2 }
 @::several, kinds([ a => 1 ])]
--- response_body eval: [('[s]') x 6, ('[]') x 6]

=== TEST 38: in a log, where nothing looks at it before
--- http_config
log_format field '$arg_id [$idempotency_field_tok]';
--- config
idempotency zone=z;
idempotency_key $idempotency_field_tok;
idempotency_scope log$uri$content_type;
access_log logs/field.log field;
location / { proxy_pass http://backend; }
location /file { client_body_in_file_only clean; proxy_pass http://backend; }
location /header { idempotency_key $http_idempotency_key; proxy_pass http://backend; }
location /header/file {
    client_body_in_file_only clean;
    idempotency_key $http_idempotency_key;
    proxy_pass http://backend;
}
location /off/file { client_body_in_file_only clean; idempotency off; proxy_pass http://backend; }
location /off/file/other {
    client_body_in_file_only clean;
    idempotency off;
    proxy_set_header X-Shop $idempotency_field_shop;
    proxy_pass http://backend;
}
location /log { access_log off; alias $TEST_NGINX_SERVER_ROOT/logs/field.log; }
--- request eval
[(map { my $b = $_; map "POST $_?id=$_\n$b->[1]", qw(/ /file /header /header/file /off/file
                                                  /off/file/other) }
 @::abc), 'GET /log']
--- more_headers eval
[(map { ("Idempotency-Key: $_->[0]\nContent-Type: $_->[0]\nContent-Length: " . length $_->[1]) x 6 }
 @::abc), '']
--- response_body eval
[(qr/exec=\d/) x 18, CORE::join '', map "$_\n",
 ('/ [abc]', '/file [abc]', '/header [abc]', '/header/file [abc]', '/off/file [-]',
  '/off/file/other [-]') x 3]
