# docs/directives.md, idempotency_normalize and idempotency_ignore_fields: bodies
# that mean the same are one request (==), anything else is a conflict (!=).
# t/lib/Bodies.pm says how a table reads.  That each digest is the right one is
# shown in t/digest.

use lib 't/lib';
use Test::Nginx::Idempotency 'no_plan';
use Bodies;

our $lua = Idempotency::has_module('ngx_http_lua_module');
our $ndk = Idempotency::has_module('ndk_http_module');
our ($early) = Idempotency::config_test(module => 0, http => 'client_body_early_read 1;');

our $form = 'application/x-www-form-urlencoded';
our $json = 'application/json';

sub form { return multipart('xxx', @_) }

our @a = (part(a => '1'), part(b => '2'));
our @i = (part('i[][n]' => 'A'), part('i[][n]' => 'B'));
our @f = (part(a => '1'),
          part(f => "\0\r\n--xx\r\n", file => 'x.png', type => 'image/png'));

# of each kind the same in two spellings, and which of them go by what they mean

our %kinds = (form      => [ [ $form, 'a=1&b=2' ], [ $form, 'b=2&a=1' ] ],
              json      => [ [ $json, '{"a":1}' ], [ $json, '{ "a":1 }' ] ],
              multipart => [ form(@a), multipart('yyy', @a) ],
              text      => [ [ 'text/plain', 'a b' ], [ 'text/plain', 'a  b' ] ]);

sub kinds {
    my ($path) = @_;

    return [ map { my ($one, $two) = @{$kinds{$_}};
                   my $meant = $path =~ m{/(?:$_|all)$} || $path eq '/' && $_ ne 'text';
                   [ $one, '==', $one, $meant ? '==' : '!=', $two ]
             } sort keys %kinds ];
}

# forms and JSON, and files, smaller and larger than all buffers

sub fields {
    return map {
        my $x = 'x' x $_;
        ([ map { ref ? [ $form, @$_ ] : $_ }
           ["a=$x&b=1"], '==', ["b=1&a=$x"], '!=', ["b=1&a=${x}x"] ],
         [ map { ref ? [ $json, @$_ ] : $_ }
           ["{\"a\":\"$x\",\"b\":1}"], '==', ["{\"b\":1,\"a\":\"$x\"}"],
           '!=', ["{\"b\":1,\"a\":\"${x}x\"}"] ])
    } 10, 2000, 70_000;
}

# bytes of no type: another first one, last one, one more and one less

sub bytes {
    return map {
        my $bytes = Idempotency::pattern($_, 1);
        [ $bytes, '==', $bytes, '!=', "${bytes}x", '!=', substr($bytes, 0, -1),
          map { ('!=', $_) } $bytes =~ s/\A(.)/chr(ord($1) ^ 128)/ser,
                             $bytes =~ s/(.)\z/chr(ord($1) ^ 1)/ser ]
    } @_;
}

our @sizes = (1, 1023, 1024, 1025, 16_384, 70_001);

sub files {
    return map {
        my $bytes = Idempotency::pattern($_, 1);
        my ($file, $other) = map { part(f => $_, file => 'x') }
                             $bytes, $bytes =~ s/.\z/!/sr;
        my ($one, $last, $order) = (form($a[0], $file), form($a[0], $other),
                                    form($file, $a[0]));

        # malformed: that is known when all of it was digested as a form
        ([ $one, '==', multipart('zz', $file, $a[0]), '!=', $last ],
         [ map { ref ? [ $_->[0], "$_->[1]x" ] : $_ }
           $one, '==', $one, '!=', $last, '!=', $order ])
    } @_;
}

run_tests();

__DATA__

=== TEST 1: forms: by their fields
--- config
idempotency zone=z;
location / { proxy_pass http://backend; }
location /off { idempotency_normalize off; proxy_pass http://backend; }
location /form { idempotency_normalize form; proxy_pass http://backend; }
location /json { idempotency_normalize json; proxy_pass http://backend; }
location /multipart { idempotency_normalize multipart; proxy_pass http://backend; }
location /text { idempotency_normalize text; proxy_pass http://backend; }
location /all { idempotency_normalize form json multipart text; proxy_pass http://backend; }
location /ignore { idempotency_ignore_fields csrf; proxy_pass http://backend; }
--- more_headers: Content-Type: application/x-www-form-urlencoded
--- bodies
a=1&b=2&c=3     ==  c=3&a=1&b=2  ==  &c=3&a=1&&&b=2&
a=1             ==  a=1&=  !=  a=1&b=  !=  a=1&a=1  !=  a=1&=1
abc=xyz         ==  %61b%63=%78%79z
%c3%af=%c3%a9   ==  %C3%AF=%C3%A9  ==  <c3 af>=<c3 a9>
a+b=x+y         ==  a%20b=x%20y  !=  a+b=x++y  !=  a+b=x+y+
a&b=1           ==  b=1&a=
<>              ==  &&
a=x             !=  a=X  !=  A=x  !=  a=x+
a=1&b=2         !=  a=1&b=3  !=  a=1&c=2  !=  b=2  !=  a=2&b=1  !=  a=1%26b=2  !=  a=1;b=2
a=b=c           ==  a=b%3Dc  !=  a%3Db=c
a=              !=  =a  !=  a=%00
a=%00x          !=  a=%00y
ab=c            !=  a=bc
a=+             !=  a=%2B
a=%20           !=  a=%2520

=== TEST 2: forms: names that servers take for one keep their order, others do not
--- more_headers: Content-Type: application/x-www-form-urlencoded
--- bodies
a=1&b=3&a=2     ==  a=1&a=2&b=3
a=1&a=2         !=  a=2&a=1
a=1&item[]=x    ==  item%5B%5D=x&a=1
item[][name]=A&item[][gift]=1&item[][name]=B
                !=  item[][name]=A&item[][name]=B&item[][gift]=1
x%5b1%5d=1&y%5B1%5D=2  ==  y%5B1%5D=2&x%5b1%5d=1
a=1&a[]=2       !=  a[]=2&a=1
a.b=1&a_b=2     !=  a_b=2&a.b=1
a+b=1&a_b=2     !=  a_b=2&a+b=1
+a=1&a=2        !=  a=2&+a=1
a%00x=1&a=2     !=  a=2&a%00x=1
a[x=1&a_x=2     !=  a_x=2&a[x=1
A=1&a=2         !=  a=2&A=1
_x=1&[x]=2      !=  [x]=2&_x=1
a.b=1&c=0&a_b=2 ==  c=0&a.b=1&a_b=2  ==  a.b=1&a_b=2&c=0  !=  a_b=2&a.b=1&c=0
a-b=1&a_b=2     ==  a_b=2&a-b=1
a=1&ab=2        ==  ab=2&a=1
%09a=1&a=2      ==  a=2&%09a=1

=== TEST 3: forms that are malformed go by their bytes
--- more_headers: Content-Type: application/x-www-form-urlencoded
--- bodies
a=%zz&b=1       ==  a=%zz&b=1  !=  b=1&a=%zz
b=1&a=%4        !=  a=%4&b=1
a=%             !=  a=%25

=== TEST 4: JSON: white space, the order of members, spelling of strings and numbers
--- more_headers: Content-Type: application/json
--- bodies
{"a":[1,2],"b":null}      ==  <20>{<0a 09>"a" : [ 1 ,<0d 0a>2 ] , "b":null } <0a>
{"a":1,"b":{"c":2,"d":3}} ==  {"b":{"d":3,"c":2},"a":1}
"A/\u00e9\n"              ==  "\u0041\/<c3 a9>\u000A"
{"ab":1,"c":2}            ==  {"c":2,"\u0061b":1}
"\ud83d\uDE00"            ==  "<f0 9f 98 80>"
["\ud83d"]                ==  <20>[ "\uD83D" ]
[1]     ==  [1.0]  ==  [1e0]
1       ==  1.0
[1500]  ==  [1.5E+3]
[0.001] ==  [1e-3]
[0.1]   ==  [0.10]
[-20]   ==  [-2e1]
[0]     ==  [-0]  ==  [-0.00e999]
[1e400] ==  [10e399]
{"B":0,"a":1}             ==  {"a":1,"B":0}
{"b":0,"\u212a":1}        ==  { "<e2 84 aa>":1, "b":0 }
{"<c3 a4>":1,"<c3 84>":2} ==  {"<c3 84>":2,"\u00e4":1}

=== TEST 5: JSON: everything else counts
--- more_headers: Content-Type: application/json
--- bodies
{"a":1}       !=  {"a":2}  !=  {"b":1}  !=  {"a":"1"}
{"a":"x"}     !=  {"a":"X"}
["true"]      !=  [true]
{"a":null}    !=  {}  !=  {"a":""}
[false]       !=  [null]  !=  [0]
{}            !=  []
[1,2]         !=  [2,1]
[1]           !=  1  !=  [1,1]  !=  [-1]
[[1],2]       !=  [[1,2]]
{"a":{"b":1},"c":2}       !=  {"a":{"b":1,"c":2}}
["a b"]       !=  ["a  b"]
["\u00e9"]    !=  ["e\u0301"]
["\ud83d"]    !=  ["\ud83c"]
["\ud800\ue000"]          !=  ["\ud801\udc00"]
[9007199254740993]        !=  [9007199254740992]
[0.30000000000000004]     !=  [0.3]
[1e400]       !=  [1e401]
[1e-400]      !=  [0]
{"a":1,"a":2} !=  {"a":2,"a":1}  !=  {"a":2}  !=  {"a":1}  !=  {"a":1, "a":2}
{"K":1}       !=  {"k":1}  !=  {"\u212a":1}

=== TEST 6: forms of 200 fields, JSON of 100 members, 400 digits, 256 levels and no more
--- bodies eval
my $long = '9' x 400;
my $deep = '[' x 256 . ']' x 256;
my @n = map "f$_=$_", 1 .. 200;
my @m = map "\"m$_\":$_", 1 .. 100;
[ [ [ $::form, join '&', @n ], '==', [ $::form, join '&', reverse @n ] ],
  map [ map { ref ? [ $::json, @$_ ] : $_ } @$_ ],
  [ ["[$long]"], '==', ["[$long.0]"], '!=', ["[${long}1]"] ],
  [ ["[${long}1]"], '!=', ["[${long}2]"] ],
  [ ['{' . join(',', @m) . '}'], '==', ['{' . join(',', reverse @m) . '}'] ],
  [ [$deep], '==', [" $deep"] ],
  [ ["[$deep]"], '==', ["[$deep]"], '!=', [" [$deep]"] ] ]

=== TEST 7: JSON that is invalid goes by its bytes
--- more_headers: Content-Type: application/json
--- bodies eval
[ [ '{"a":1,}', '==', '{"a":1,}' ],
  [ '1', '!=', "J#\0011" ],     # the bytes that its digest is made of
  map [ $_, '!=', "$_ " ],
  '{"a":1,}', '[NaN]', '[01]', '[+1]', '[1.]', "{'a':1}", '[1/**/]', '{"a":1',
  '{} {}', "\xef\xbb\xbf{}", "[\"\t\"]", '["\x"]', "[\"\xff\"]", 'a=1&b=2', "\n", '' ]

=== TEST 8: JSON with a name twice in an object, in whatever letters, goes by its bytes
--- uri: / /ignore
--- more_headers: Content-Type: application/json
--- bodies
{"a":1,"a":1}           ==  {"a":1,"a":1}  !=  { "a":1,"a":1}
{"a":1,"A":2}           !=  {"A":2,"a":1}  !=  {"a":1, "A":2}
{"b":0,"a":1,"\u0041":2}  !=  {"b":0,"a":1,"A":2}
[{"x":{"s":1,"\u017f":2}}]  !=  [{"x":{"\u017f":2,"s":1}}]
{"K":1,"<e2 84 aa>":2}  !=  {"<e2 84 aa>":2,"K":1}
{"id":1,"ID":2}         !=  {"ID":1,"id":2}
{"csrf":1,"a":[{"x":1,"X":2}]}  !=  {"csrf":2,"a":[{"x":1,"X":2}]}
{"csrf":1,"Csrf":2}     !=  {"csrf":3,"Csrf":2}
{"csrf":{"a":1,"a":2}}  !=  {"csrf":{"a":1,"a":3}}

=== TEST 9: which types are JSON
--- bodies eval
[ map({ [ [ $_, '{"a":1,"b":2}' ], '==', [ $_, '{ "b":2, "a":1 }' ],
                                   '!=', [ $_, '{"a":1,"b":3}' ] ] }
      'application/problem+json', 'application/vnd.api+json', 'image/x+json',
      'Application/LD+JSON; charset=utf-8'),
  map({ [ [ $_, '{"a":1}' ], '==', [ $_, '{"a":1}' ], '!=', [ $_, '{"a":1} ' ] ] }
      'text/json', 'application/jsonp', 'application/x-json',
      'application/json-seq', 'application/+jsonx') ]

=== TEST 10: multipart: by its parts, whatever the boundary
--- bodies eval
my ($type, $bytes) = @{form(@::f)};
my @p = map part("p$_" => $_), 1 .. 100;
my @limit = (part(MAX_FILE_SIZE => 1), $::f[1]);
[ [ form(@::f), '==', form(reverse @::f),
    '==', multipart('----WebKitFormBoundary7MA4YWxkTrZu0gW', @::f),
    '==', [ 'multipart/form-data; boundary="xxx"', $bytes ],
    '==', [ 'Multipart/Form-Data;BOUNDARY=xxx', $bytes ],
    '==', [ 'multipart/form-data; charset=utf-8; boundary=xxx', $bytes ] ],
  [ form(@::a), '==', form($::a[0], "content-DISPOSITION:form-data;NAME=b\r\n\r\n2") ],
  [ form(part(f => 1, type => 'text/Xml')), '==', form(part(f => 1, type => 'Text/xml')) ],
  [ form(@p), '==', form(reverse @p) ],
  [ form(@::i, $::a[0]), '==', form($::a[0], @::i) ],
  [ form(@limit, @::a), '==', form($::a[0], @limit, $::a[1]) ],
  [ form($::i[0], part('i[][g]' => 1), $::i[1]), '!=', form(@::i, part('i[][g]' => 1)) ],
  [ form(@::a, part(a => 3)), '==', form($::a[0], part(a => 3), $::a[1]) ] ]

=== TEST 11: multipart: everything else counts
--- bodies eval
my @limit = (part(MAX_FILE_SIZE => 1), $::f[1]);
[ [ form(@::a), map { ('!=', form(@$_)) }
    [ $::a[0], part(b => 3) ], [ $::a[0], part(c => 2) ], [ @::a, part(c => '') ],
    [ $::a[1] ], [ @::a, $::a[1] ], [ part(a => 2), part(b => 1) ] ],
  [ form(part(a => 1), part(a => 2)), '!=', form(part(a => 2), part(a => 1)) ],
  map({ my ($x, $y) = (part($_->[0] => 1), part($_->[1] => 2));
        [ form($x, $y), '!=', form($y, $x) ] }
      ['a.b', 'a_b'], ['a', 'a[]'], ['a b', 'A'], [' a', 'a'], ['_', '[x]']),
  [ form(@limit), '!=', form(reverse @limit) ],
  [ form(@::a), map { ('!=', form($::a[0], $_)) }
    map(part(b => 2, more => "$_\r\n"), 'X-Some: thing', 'X-Some: other', 'X-Other: thing',
        'Content-Transfer-Encoding: binary'),
    map "Content-Disposition: form-data; name=b; $_\r\n\r\n2", 'size=1', 'size=2', 'x=1' ],
  [ form(part(a => 1, type => 'text/plain')),
    '!=', form(part(a => 1, type => 'text/plain; charset=utf-16')) ],
  [ form(part(f => 1)), '!=', form(part(f => 1, file => 'x')),
    '!=', form(part(f => 1, file => '')), '!=', form(part(f => 1, type => 'text/xml')),
    '!=', form(part(f => "1\r\n")) ],
  [ form(part(f => 1, file => 'x')), '!=', form(part(f => 1, file => 'y')) ],
  [ form(part(f => 1, type => 'text/html')), '!=', form(part(f => 1, type => 'text/xml')) ],
  [ form(part(a => 'x y')), '!=', form(part(a => 'x  y')) ],
  [ form(), '!=', form(part('' => '')) ] ]

=== TEST 12: what is no multipart form, or reads in two ways, goes by its bytes
--- bodies eval
my @x = map { my $b = $_; my ($type, $all) = @{multipart($b, @::a)};
              my $of = sub { [ $type, multipart($b, @_)->[1] ] };
              [ [ $type, $all =~ s/--\r\n\z/\r\n/r ],   # no last delimiter
                [ $type, "x\r\n$all" ],
                [ $type, $all . 'x' ],
                [ $type, $all =~ s/\r//gr ],
                [ $type, '' ],
                [ $type =~ s/form-data/mixed/r, $all ],
                [ $type =~ s/$b/\U$b/r, $all ],
                $of->("Content-Disposition: form-data\r\n\r\n1"),
                $of->("\r\n1"),
                $of->(part(a => 'MQ==', more => "Content-Transfer-Encoding: base64\r\n")) ]
        } qw(xxx yyy);
[ map({ [ $x[0][$_], '==', $x[0][$_], '!=', $x[1][$_] ] } 0 .. $#{$x[0]}),
  [ [ 'multipart/form-data', form(@::a)->[1] ],
    '!=', [ 'multipart/form-data', form(reverse @::a)->[1] ] ],
  map({ my $two = "; $_->[0]=zzz";
        [ map { ref ? [ "$_->[0]$two", $_->[1] ] : $_ }
          form(@::a), '==', form(@::a), '!=', form(reverse @::a) ],
        [ [ form(@::a)->[0] . $two, form(@::a)->[1] ], '!=',
          [ form(@::a)->[0] . "; $_->[0]=yyy", form(@::a)->[1] ] ] }
      ['boundary'], ['Boundary'], ["boundary*"]) ]

=== TEST 13: a form with a part that reads in two ways goes part by part, without the boundary
--- uri: / /ignore
--- bodies eval
[ map { my $odd = "Content-Disposition: form-data; $_\r\n\r\n3";
        ([ form($odd, @::a), '==', form($odd, @::a), '==', multipart('yyy', $odd, @::a),
           '!=', form(@::a, $odd), '!=', form($odd, reverse @::a),
           '!=', form($odd =~ s/\b3\z/4/r, @::a), '!=', form($odd =~ s/: /:/r, @::a),
           '!=', form($odd, $::a[0] =~ s/Disp/disp/r, $::a[1]) ],
         [ form($odd =~ s/"\w+"/"csrf"/r), '!=', form($odd =~ s/"\w+"/"csrf"/r =~ s/3\z/4/r) ]) }
  'name="a"; name="b"', 'name="b"; name="a"', 'name="a"; name*=b', 'name*=b; name="a"',
  'name="a"; name*0=b', 'name*=b', 'name="a"; filename=x; filename=y' ]

=== TEST 14: multipart: a delimiter may be cut anywhere
--- framing: 0 1 2 3 4 5 6 7
--- bodies eval: [ [ form(@::f), '==', form(@::f) ] ]

=== TEST 15: text: runs of white space are one space, if text is listed
--- uri: /text /all
--- more_headers: Content-Type: text/plain
--- bodies
a b     ==  a <09 0d 0a> b  ==  <0a> a b <0a>  ==  <e3 80 80> a<c2 a0 e2 80 a8>b<c2 a0>
        !=  A b  !=  ab  !=  a c  !=  a<e2 80 8b>b  !=  a<a0>b
<>      ==  <20 0a c2 a0>

=== TEST 16: text: with it, the values of forms and fields, but not JSON, files and other types
--- uri: /all
--- bodies eval
[ [ [ $::form, 'a=x+y&b=1' ], '==', [ $::form, "b=+1+&a=x%0d%0a\xc2\xa0+y" ],
    '!=', [ $::form, 'a=xy&b=1' ], '!=', [ $::form, 'a=X+y&b=1' ] ],
  [ [ $::form, 'a+b=1' ], '!=', [ $::form, 'a++b=1' ] ],
  [ [ $::json, '["a b"]' ], '==', [ $::json, '[ "a b" ]' ], '!=', [ $::json, '["a  b"]' ] ],
  [ [ 'text/plain; charset=utf-16', ' a ' ], '!=', [ 'text/plain; charset=utf-16', 'a' ] ],
  [ [ 'text/html', '<p> a' ], '!=', [ 'text/html', '<p>  a' ] ],
  [ form(part(a => 'x y')), '==', form(part(a => " x \r\n y ")) ],
  [ form(part(f => 'x y', file => 'a')), '!=', form(part(f => 'x  y', file => 'a')) ] ]

=== TEST 17: idempotency_normalize: what it lists goes by its meaning; form, json and multipart by default
--- uri: / /off /form /json /multipart /text /all
--- bodies eval: \&kinds

=== TEST 18: where nginx sends a request on, the last location's settings count
--- config
idempotency zone=z;
location /all { idempotency_normalize off; try_files /none @all; }
location /off { try_files /none @off; }
location @all { idempotency_normalize form json multipart text; proxy_pass http://backend; }
location @off { idempotency_normalize off; proxy_pass http://backend; }
location / { proxy_pass http://backend; }
location /bytes { if ($http_x_bytes) { rewrite ^ /sent_on last; } proxy_pass http://backend; }
location /sent_on { idempotency_normalize off; proxy_pass http://backend; }
--- uri: /all /off
--- bodies eval: \&kinds

=== TEST 19: the type, without its charset, letter case and white space, is a part of it
--- bodies eval
my @types = ('application/json; charset=utf-8', 'application/json;charset=X',
             'Application/JSON', 'application/json ; CHARSET="utf-8"',
             'application/json;', 'application/json; charset=utf-8;');
[ [ [ $::json, '{"a":1}' ], map { ('==', [ $_, '{"a" : 1}' ]) } @types ],
  [ [ $::json, '{"a":1' ], map { ('==', [ $_, '{"a":1' ]) } @types ],
  [ [ $::form, 'a&b' ], '==', [ "$::form; charset=UTF-8", 'b&a' ], '==', [ uc $::form, 'b&a' ] ],
  [ [ 'image/png', 1 ], '==', [ 'Image/PNG', 1 ], '!=', [ 'image/jpeg', 1 ] ],
  [ [ $::json, 1 ], map { ('!=', [ $_, 1 ]) }
                  'application/problem+json', 'text/plain', "$::json; v=2", ' ',
                  'application/octet-stream', '' ],
  [ [ '', 1 ], '!=', [ 'text/plain', 1 ] ], [ [ 'a/b', 'c' ], '!=', [ 'a/', 'bc' ] ],
  [ [ 'image/png; v=1', 1 ], '!=', [ 'image/png; v=2', 1 ] ],
  [ [ $::form, 1 ], '!=', [ 'text/plain', 1 ], '!=', [ '', 1 ] ],
  [ [ $::form, '' ], '!=', [ 'text/plain', '' ] ] ]

=== TEST 20: what is coded goes by its bytes, and the coding is a part of it
--- bodies eval
[ map({ my $coding = $_;
        map { my ($one, $two) = @{$::kinds{$_}};
              [ [ @$one, $coding ], '==', [ @$one, $coding ],
                '!=', [ @$two, $coding ], '!=', $one ] } qw(form json multipart)
  } 'gzip', 'identity', ''),
  [ [ $::json, 1, 'gzip' ], '!=', [ $::json, 1, 'br' ] ] ]

=== TEST 21: a digest by meaning is never one by bytes
--- request eval: "POST /bytes\na=1"
--- more_headers eval: [map "Idempotency-Key: bytes\nContent-Type: $::form\n$_", '', 'X-Bytes: 1']
--- idempotency_status: NEW CONFLICT
--- error_code: 200 409

=== TEST 22: idempotency_normalize_buffer: what is larger goes by its bytes
--- config
idempotency zone=z;
location / { proxy_pass http://backend; }
location /100 {
    idempotency_normalize form json multipart text;
    idempotency_normalize_buffer 100;
    proxy_pass http://backend;
}
location /2m { idempotency_normalize_buffer 2m; proxy_pass http://backend; }
location /multipart { idempotency_normalize multipart; proxy_pass http://backend; }
location /all { idempotency_normalize form json multipart text; proxy_pass http://backend; }
location /sent_on { idempotency_normalize off; try_files /none @all; }
location @all { idempotency_normalize form json multipart text; proxy_pass http://backend; }
location /stream { proxy_request_buffering off; proxy_http_version 1.1; proxy_pass http://backend; }
location /small { client_body_buffer_size 1k; proxy_pass http://backend; }
location /single {
    client_body_in_single_buffer on;
    client_body_buffer_size 16k;
    proxy_pass http://backend;
}
location /file { client_body_in_file_only clean; proxy_pass http://backend; }
location /mirror { satisfy any; allow all; mirror /nobody; proxy_pass http://backend; }
location /nobody { return 204; }
location /limited { client_max_body_size 1k; proxy_pass http://backend; }
location /mirrored { satisfy any; allow all; mirror /copy; proxy_pass http://backend; }
location /copy { proxy_pass http://backend/copy?id=copy&$args; }
location /last { proxy_pass http://backend; }
--- uri: /100
--- framing: both
--- bodies eval
[ map { my ($type, $one, $two) = @$_;
        [ [ $type, $one ], '==', [ $type, $one ],
          length $one == 100 ? '==' : '!=', [ $type, $two ] ] }
  map({ [ $::form, "a=1&b=$_", "b=$_&a=1" ] } 'x' x 94, 'x' x 95),
  map({ [ $::json, "{\"a\":\"$_\" }", "{ \"a\":\"$_\"}" ] } 'x' x 91, 'x' x 92),
  map({ [ 'text/plain', " $_", "$_ " ] } 'x' x 99, 'x' x 100) ]

=== TEST 23: idempotency_normalize_buffer: 1m by default
--- more_headers: Content-Type: application/x-www-form-urlencoded
--- bodies eval
[ map [ "a=1&b=$_", length == 1_048_570 ? '==' : '!=', "b=$_&a=1" ],
  'x' x 1_048_570, 'x' x 1_048_571 ]

=== TEST 24: idempotency_normalize_buffer: a larger one
--- uri: /2m
--- more_headers: Content-Type: application/x-www-form-urlencoded
--- bodies eval: [ map [ "a=1&b=$_", '==', "b=$_&a=1" ], 'x' x 1_048_571 ]

=== TEST 25: however a body came, and wherever it lies or was read before
--- uri: /stream /small /single /file /2m /mirror
--- framing: both
--- bodies eval: [ fields(), files(900, 70_000), bytes(@::sizes) ]


=== TEST 26: files of any size, beyond all buffers
--- uri: / /100 /multipart /all /sent_on
--- framing: both
--- bodies eval: [ files(900, 70_000) ]

=== TEST 27: a file of 3 MB, and 8 MB of bytes
--- framing: both
--- bodies eval: [ files(3_000_000), bytes(8_000_000) ]

=== TEST 28: no body, any bytes, and what looks like a request, in pieces
--- framing: 0 1 2 1000000000
--- bodies eval
[ map [ $_, '==', $_, '!=', "${_}x" ],
  '', 'abcdef', join('', map chr, 0 .. 255), "GET /x HTTP/1.1\r\n\r\n" ]

=== TEST 29: no body at all, one of no length, and no chunks are one
--- request eval: ["POST /none", "POST /none", "POST /none\n0\r\n\r\n"]
--- more_headers eval: [map "Idempotency-Key: none\n$_", '', 'Content-Length: 0', 'Transfer-Encoding: chunked']
--- idempotency_status: NEW REPLAYED REPLAYED

=== TEST 30: HTTP/1.0
--- request eval: [map "POST /old?sha=1 HTTP/1.0\n$_", 'old', 'old', 'new']
--- more_headers: Idempotency-Key: old
--- error_code: 200 200 409
--- response_body eval
[('cba06b5736faf67e54b07b561eae94395e774c517a7d910a54369e1263ccfbd4 3' . "\n") x 2, qr/conflict/]
--- executions: 1

=== TEST 31: the upstream hears the length of what came in chunks
--- request eval: "POST /?echo=1\n3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n"
--- more_headers
Idempotency-Key: chunks
Transfer-Encoding: chunked
--- response_body_like: ^POST(?!.*Transfer-Encoding).*\nContent-Length: 6\n.*\n\nabcdef$

=== TEST 32: what is larger than client_max_body_size is refused and leaves no trace
--- request eval
[map { my $body = $_; map "POST /limited\n$_", $body, 'small', 'small' }
 'x' x 1025, "401\r\n" . 'x' x 1025 . "\r\n0\r\n\r\n",
 "3e8\r\n" . 'x' x 1000 . "\r\n19\r\n" . 'x' x 25 . "\r\n0\r\n\r\n"]
--- more_headers eval
[map { my ($key, $more) = @$_; map "Idempotency-Key: large-$key\n$_", $more, '', '' }
 [1, ''], [2, 'Transfer-Encoding: chunked'], [3, 'Transfer-Encoding: chunked']]
--- error_code eval: [(413, 200, 200) x 3]
--- idempotency_status eval: '- NEW REPLAYED ' x 3
--- executions: 3

=== TEST 33: ... with a bound key, too
--- request eval: [map "POST /limited\n" . 'x' x $_, 1024, 1025]
--- more_headers: Idempotency-Key: fits
--- error_code: 200 413

=== TEST 34: what is no chunk is refused and leaves no trace
--- request eval: ["POST /\nzz\r\n\r\n", "POST /\nsmall", "POST /\nsmall"]
--- more_headers eval: ["Idempotency-Key: zz\nTransfer-Encoding: chunked", ('Idempotency-Key: zz') x 2]
--- error_code: 400 200 200
--- idempotency_status: - NEW REPLAYED

=== TEST 35: requests in one packet get an answer each
--- pipelined_requests eval
[map "POST /packet\n$_", 'one', 'one', 'two', "4\r\nbody\r\n0\r\n\r\n", 'body',
 "1\r\no\r\n2\r\nne\r\n0\r\n\r\n"]
--- more_headers eval
[map({ "Idempotency-Key: packet-1\n$_" } ('') x 3), "Idempotency-Key: packet-2\nTransfer-Encoding: chunked",
 'Idempotency-Key: packet-2', "Idempotency-Key: packet-1\nTransfer-Encoding: chunked"]
--- error_code: 200 200 409 200 200 200
--- idempotency_status: NEW REPLAYED CONFLICT NEW REPLAYED REPLAYED
--- response_body eval
[("exec=1 id=/packet\n") x 2, qr/conflict/, ("exec=2 id=/packet\n") x 2, "exec=1 id=/packet\n"]

=== TEST 36: a refusal and a replay take the whole body off the connection
--- pipelined_requests eval: [(map "POST /small\n" . 'b' x 200_000 . $_, '', '', '!'), 'GET /small']
--- more_headers eval: [('Idempotency-Key: off') x 4]
--- error_code: 200 200 409 200
--- idempotency_status: NEW REPLAYED CONFLICT -

=== TEST 37: a mirror has the body, too, but not of a repeat
--- request eval: [("POST /mirrored\n" . 'x' x 70_000) x 2, "GET /last?id=copy"]
--- more_headers: Idempotency-Key: mirrored
--- idempotency_status: NEW REPLAYED -
--- response_body_like eval: [('exec=1') x 2, '\n\n' . 'x' x 70_000 . '$']
--- executions: 2

=== TEST 38: what Lua has read before us
--- skip_eval: 1: !$::lua || !$::ndk
--- main_config eval: join '', map "load_module $_;\n", $::ndk, $::lua
--- config
idempotency zone=z;
client_body_buffer_size 1k;
location / {
    rewrite_by_lua_block { ngx.req.read_body() }
    proxy_pass http://backend;
}
--- framing: both
--- bodies eval: [ [ '', '==', '', '!=', 'x' ], fields(), files(900, 70_000), bytes(@::sizes) ]

=== TEST 39: what nginx has read before it chose a location
--- skip_eval: 1: !$::early
--- http_config
client_body_early_read 1;
--- config
idempotency zone=z;
location / { proxy_pass http://backend; }
--- framing: both
--- bodies eval: [ [ '', '==', '', '!=', 'x' ], bytes(1, 1024, 70_001) ]

=== TEST 40: idempotency_ignore_fields: fields of forms
--- config
idempotency zone=z;
location / { idempotency_ignore_fields csrf ts /top ""; proxy_pass http://backend; }
location /json {
    idempotency_ignore_fields csrf ts;
    idempotency_ignore_fields /meta/ts /items/0/note /a~1b/c~0d /top "" /list/2 /~01;
    proxy_pass http://backend;
}
location /off {
    idempotency_normalize off;
    idempotency_ignore_fields csrf;
    proxy_pass http://backend;
}
location /some {
    idempotency_normalize text form;
    idempotency_ignore_fields csrf;
    proxy_pass http://backend;
}
location /none { proxy_pass http://backend; }
--- more_headers: Content-Type: application/x-www-form-urlencoded
--- bodies
a=1&csrf=x  ==  a=1&csrf=y  ==  a=1  ==  a=1&c%73rf=x  ==  a=1&=x
            ==  ts=2&a=1  ==  a=1&ts=1&csrf=1&ts=2  !=  a=2&csrf=x
a=1&csrf2=x !=  a=1&csrf2=y
a=1&csr=x   !=  a=1&csr=y
a=1&CSRF=x  !=  a=1&CSRF=y
/top=1      !=  /top=2            # a JSON pointer is for JSON
top=1       !=  top=2
a=%&csrf=x  !=  a=%&csrf=y        # malformed

=== TEST 41: idempotency_ignore_fields: members of JSON, by name and by pointer
--- uri: /json
--- more_headers: Content-Type: application/json
--- bodies
{"a":1,"csrf":"x"}  ==  {"a":1,"csrf":"y"}  ==  {"a":1,"csrf":[{}]}  ==  {"a":1}
                    ==  {"a":1,"\u0063srf":1}  !=  {"a":2,"csrf":"x"}
{}                  ==  {"csrf":1,"ts":2}  ==  {"":1}  ==  {"top":1}  ==  {"~1":1}
{"meta":{"ts":1,"x":2}}  ==  {"meta":{"x":2}}  !=  {"meta":{"ts":1,"x":3}}
{"meta":{"ts":1}}   !=  {"meta":[1]}
{"items":[{"note":"x","n":1},{"note":"y"}]}  ==  {"items":[{"note":"z","n":1},{"note":"y"}]}
                    !=  {"items":[{"note":"x","n":1},{"note":"z"}]}
{"items":{"0":{"note":1}}}  ==  {"items":{"0":{"note":2}}}
{"list":[1,2,3,4]}  ==  {"list":[1,2,33,4]}  !=  {"list":[1,3,3,4]}
{"a/b":{"c~d":1,"x":1}}  ==  {"a/b":{"c~d":2,"x":1}}
{"a":{"csrf":1}}    !=  {"a":{"csrf":2}}
[{"csrf":1}]        !=  [{"csrf":2}]
{"CSRF":1}          !=  {"CSRF":2}
{"x":{"meta":{"ts":1}}}  !=  {"x":{"meta":{"ts":2}}}
{"/meta/ts":1}      !=  {"/meta/ts":2}
{"/":1}             !=  {"/":2}         # an escape is resolved once
{"csrf":1           !=  {"csrf":2       # invalid

=== TEST 42: idempotency_ignore_fields: parts, and files
--- bodies eval
[ [ form(@::a), '==', form(@::a, part(csrf => 'x', file => 'y')),
    '==', form(part(csrf => 'y', type => 'text/plain'), @::a, part(ts => 1)) ],
  [ form(@::a, part(csrg => 'x')), '!=', form(@::a, part(csrg => 'y')) ],
  [ form(@::a, part('/top' => 'x')), '!=', form(@::a, part('/top' => 'y')) ] ]

=== TEST 43: idempotency_ignore_fields: only where a body goes by its meaning
--- uri: /some
--- bodies eval
[ [ [ $::form, 'csrf=x' ], '==', [ $::form, 'csrf=y' ] ],
  map [ [ $_->[0], $_->[1] ], '!=', [ $_->[0], $_->[1] =~ s/x/y/r ] ],
  [ $::json, '{"csrf":"x"}' ], [ 'text/plain', 'csrf=x' ] ]

=== TEST 44: idempotency_ignore_fields: not with idempotency_normalize off, nor without it
--- uri: /off /none
--- more_headers: Content-Type: application/x-www-form-urlencoded
--- bodies
a=1&csrf=x  !=  a=1&csrf=y
