# SPEC, "Variables": $idempotency_field_NAME, a field of the request's body, so
# that the key may travel in a form.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;


my $n = nginx(http => <<'EOC', server => <<'EOC');
    log_format field "$arg_id [$idempotency_field_tok]";
    map $idempotency_field_tok $mapped { default "<$idempotency_field_tok>"; }
    map $idempotency_field_tok $as_it_is { default $idempotency_field_tok; }
    map $idempotency_field_tok $early  { default "<$idempotency_field_tok>"; }

    access_log off;
    client_max_body_size 16m;

    idempotency zone=z;
    idempotency_scope $arg_id;
    idempotency_key $http_idempotency_key $idempotency_field_tok;
    idempotency_ignore_fields tok;

    add_header X-Status $idempotency_status always;
    add_header X-Key "[$idempotency_key]" always;
    add_header X-Field "[$idempotency_field_tok]" always;

    # names a field that no configuration names
    server {
        listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1;
        idempotency off;
        default_type text/html;
        location / {
            return 200 '[<!--# echo var="idempotency_field_dyn" default="" -->]';
        }
    }
EOC
    location / { proxy_pass http://$TEST_NGINX_BACKEND; }

    location /reject {
        idempotency_missing_key reject;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /content {
        idempotency_missing_key content;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /uuid {
        idempotency_key_format uuid;
        idempotency_missing_key reject;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /first {
        idempotency_key $idempotency_field_tok $http_idempotency_key;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /several {
        idempotency_key $idempotency_field_tok $idempotency_field_order_id
                        "${idempotency_field_shop}/$arg_order";
        idempotency_missing_key reject;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /header {
        idempotency_key $http_idempotency_key;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /ssi {
        ssi on;
        proxy_pass http://127.0.0.1:$TEST_NGINX_RAND_PORT_1;
    }

    location /ssi/off {
        ssi on;
        idempotency off;
        proxy_pass http://127.0.0.1:$TEST_NGINX_RAND_PORT_1;
    }

    location /off {
        add_header X-Field "[$idempotency_field_tok]" always;
        add_header X-Others "[$idempotency_field_shop][$idempotency_field_none]"
                   always;
        idempotency off;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /raw {
        idempotency_normalize off;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /three {
        idempotency_key "$idempotency_field_tok$idempotency_field_shop$arg_x";
        idempotency_missing_key reject;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /small {
        idempotency_normalize_buffer 100;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /mapped {
        idempotency_key $idempotency_field_none $mapped;
        proxy_pass http://$TEST_NGINX_BACKEND;

        location /mapped/early {
            idempotency_key $mapped;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /mapped/none {
            idempotency_key $as_it_is;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }
    }

    location /early {
        set $seen "$idempotency_field_tok";
        set $seen_by_map $early;
        add_header X-Seen "[$seen][$seen_by_map]" always;
        add_header X-Field "[$idempotency_field_tok]" always;
        add_header X-Status $idempotency_status always;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /temp {
        client_body_in_file_only clean;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /log/ {
        # nothing looks at it before the log
        add_header X-Status $idempotency_status always;
        access_log $TEST_NGINX_ROOT/logs/access.log field;

        location /log/memory {
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /log/temp {
            client_body_in_file_only clean;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /log/header {
            idempotency_key $http_idempotency_key;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /log/header/temp {
            client_body_in_file_only clean;
            idempotency_key $http_idempotency_key;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /log/off/temp {
            client_body_in_file_only clean;
            idempotency off;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }
    }

    location /upstream {
        proxy_set_header X-Token $idempotency_field_tok;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
EOC

my $form = 'application/x-www-form-urlencoded';
my $json = 'application/json';
my $id = 'case0';

sub told {
    my ($r) = @_;

    return "$r->{status} " . ($r->header('X-Status') // '-');
}

sub part {
    my ($name, $body, $more) = @_;

    return "Content-Disposition: form-data; name=\"$name\"" . ($more // '')
           . "\r\n\r\n$body";
}

sub multipart {
    my (@parts) = @_;

    return ( type => 'multipart/form-data; boundary=xxx',
             body => join('', map { "--xxx\r\n$_\r\n" } @parts)
                     . "--xxx--\r\n" );
}

# The key that a body gives, and that it is one: the header with the same key
# is another fingerprint, so the body goes along.

sub key_is {
    my ($name, $key, $path, %m) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    $id++;
    my @r = map { $n->post("$path?id=$id", %m) } 1, 2;

    is(join(', ', (map { told($_) } @r), $r[0]->header('X-Key')),
       "200 NEW, 200 REPLAYED, [$key]", $name);
    is(executions($id), 1, '... executed once');
}

sub no_key {
    my ($name, %m) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    $id++;
    is(join(', ', map { told($n->post("/?id=$id", %m)) } 1, 2),
       '200 -, 200 -', "$name: no key");
    is(told($n->post("/reject?id=$id", %m)), '400 MISSING',
       '... where one is required');
    is(executions($id), 2, '... executed twice, then never');
}

sub malformed {
    my ($name, $path, %m) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    $id++;
    is(told($n->post("$path?id=$id", %m)), '400 MALFORMED', $name);
    is(executions($id), 0, '... is not executed');
}


# The key may be in the body, but nobody can tell: refused, whatever is done
# without a key.  One in a header needs no body.

sub unreadable {
    my ($name, %m) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    $id++;
    my $r = $n->post("/?id=$id", %m);
    is(told($r), '400 MALFORMED', "$name: unreadable");
    like($r->{body}, qr/may stand in (the content|it)/, '... and told so');
    is(told($n->post("$_?id=$id", %m)), '400 MALFORMED', "... at $_")
        for qw(/content /reject);
    is(told($n->post("/?id=$id", %m, key => 'h')), '200 NEW',
       '... with a header');
    is(executions($id), 1, '... executed once');
}


# --- forms, multipart, JSON --------------------------------------------------

for my $body ('tok=abc', 'a=1&tok=abc&b=2', '&&tok=abc', 't%6Fk=a%62c',
              'tok=abc&tok=def', 'TOK=abc', 'Tok=abc', 'xtok=1&tok2=2&tok=abc',
              'a=%zz&tok=abc')
{
    key_is("a form: $body", 'abc', '/', type => $form, body => $body);
}

key_is('a form: decoded', 'a b+c=d&e', '/', type => $form,
       body => 'tok=a+b%2Bc=d%26e');
key_is('a form with a charset', 'abc', '/', type => "$form; charset=utf-8",
       body => 'tok=abc');
key_is('a form, chunked', 'abc', '/', type => $form,
       chunked => ['to', 'k=a', 'bc']);
key_is('a form in a file', 'abc', '/temp', type => $form, body => 'tok=abc');
key_is('a form of 100 kB', 'abc', '/', type => $form,
       body => 'a=' . 'x' x 100_000 . '&tok=abc');

for my $body ('{"tok":"abc"}', "{ \"a\":[{\"tok\":1}],\n\"tok\" : \"abc\"}",
              '{"\u0074ok":"\u0061bc"}', '{"tok":"abc","tok":"def"}',
              '{"Tok":"abc"}')
{
    key_is("JSON: $body", 'abc', '/', type => $json, body => $body);
}

key_is('JSON: a number', '42', '/', type => $json, body => '{"tok":42}');
key_is('JSON: true', 'true', '/', type => $json, body => '{"tok":true}');
key_is('JSON: false', 'false', '/', type => $json, body => '{"tok":false}');
key_is('JSON with a suffix', 'abc', '/', type => 'application/x+json',
       body => '{"tok":"abc"}');
key_is('JSON, chunked', 'abc', '/', type => $json,
       chunked => ['{"to', 'k":"a', 'bc"}']);
key_is('JSON in a file', 'abc', '/temp', type => $json,
       body => '{"tok":"abc"}');

key_is('multipart', 'abc', '/', multipart(part(tok => 'abc')));
key_is('multipart, in another case', 'abc', '/', multipart(part(Tok => 'abc')));
key_is('multipart, the first of two', 'abc', '/',
       multipart(part(tok => 'abc'), part(tok => 'def')));
key_is('multipart, behind a file', 'abc', '/',
       multipart(part(f => 'x' x 300_000, '; filename="x"'),
                 part(tok => 'abc')));
key_is('multipart, before a file of any size', 'abc', '/small',
       multipart(part(tok => 'abc'),
                 part(f => 'x' x 3_000_000, '; filename="x"')));
key_is('multipart, as it is, not decoded', 'a%20b+c', '/',
       multipart(part(tok => 'a%20b+c')));
key_is('multipart in a file', 'abc', '/temp', multipart(part(tok => 'abc')));
{
    my %m = multipart(part(a => 1), part(tok => 'abc'));
    key_is("multipart in pieces of $_ bytes", 'abc', '/', type => $m{type},
           chunked => [unpack "(a$_)*", $m{body}]) for 1 .. 5;
}

no_key($_->[0], @$_[1 .. $#$_]) for
    [ 'no body' ],
    [ 'a form without it', type => $form, body => 'a=tok&b=1' ],
    [ 'a form in which it is empty', type => $form, body => 'tok=' ],
    [ 'a form in which it has no value', type => $form, body => 'tok' ],
    [ 'a form: a longer name', type => $form, body => 'tok2=abc' ],
    [ 'JSON without it', type => $json, body => '{"a":"tok"}' ],
    [ 'JSON in which it is deeper', type => $json, body => '{"a":{"tok":1}}' ],
    [ 'JSON in which it is null', type => $json, body => '{"tok":null}' ],
    [ 'JSON in which it is empty', type => $json, body => '{"tok":""}' ],
    [ 'JSON in which it is an object', type => $json, body => '{"tok":{}}' ],
    [ 'JSON in which it is an array', type => $json, body => '{"tok":["a"]}' ],
    [ 'JSON that is no object', type => $json, body => '["tok","abc"]' ],
    [ 'JSON that is invalid where it does not matter', type => $json,
      body => '{"a":01}' ],
    [ 'JSON of nothing', type => $json, body => " \n" ],
    [ 'an empty body of a type', type => 'multipart/form-data; boundary=x',
      body => '' ],
    [ 'an empty body, chunked', type => $json, chunked => [''] ],
    [ 'multipart without it', multipart(part(a => 'tok')) ],
    [ 'multipart in which it is empty', multipart(part(tok => '')) ],
    [ 'a file of that name', multipart(part(tok => 'abc',
                                            '; filename="tok"')) ],
    [ 'a file without a name', multipart(part(tok => 'abc',
                                              '; filename=""')) ],
    [ 'multipart/mixed', type => 'multipart/mixed; boundary=xxx',
      body => "--xxx\r\n\r\n\r\n--xxx--" ],
    [ 'bytes of any kind', type => 'application/octet-stream',
      body => 'tok=abc' ],
    [ 'bytes of any kind, compressed', type => 'application/octet-stream',
      body => 'tok=abc', headers => ['Content-Encoding: gzip'] ],
    [ 'a text', type => 'text/plain', body => 'tok=abc' ],
    [ 'no type', body => 'tok=abc' ],
    [ 'a type that is not JSON', type => 'text/json', body => '{"tok":"a"}' ];

# --- whatever is wrong behind it, however it arrives ------------------------

# to the last byte
sub pieces { my ($text, $n) = @_; return [unpack "(a$n)*", $text] }

for my $m ([ 'a bad escape', $form, 'tok=abc&a=%zz' ],
           [ 'a cut one', $form, 'tok=abc&a=%4' ],
           [ 'an invalid end', $json, '{"tok":"abc",}' ],
           [ 'no end', $json, '{"tok":"abc"' ],
           [ 'a lone surrogate', $json, '{"a":"\ud83d","tok":"abc"}' ],
           [ 'a lone surrogate behind', $json, '{"tok":"abc","a":"\ud83d"}' ],
           [ 'a lone low one', $json, '{"a":["\ude00"],"tok":"abc"}' ],
           [ 'a byte order mark', $json, "\xef\xbb\xbf{\"tok\":\"abc\"}" ],
           [ 'invalid UTF-8', $json, "{\"a\":\"\xff\",\"tok\":\"abc\"}" ],
           [ 'deep', $json, '{"a":' . '[' x 300 . ']' x 300
                            . ',"tok":"abc"}' ],
           [ 'too many members', $json,
             '{' . '"a":1,' x 17_000 . '"tok":"abc"}' ],
           [ 'too many fields', $form, 'a&' x 33_000 . 'tok=abc' ])
{
    my ($name, $type, $body) = @$m;

    key_is("$name: found", 'abc', '/', type => $type, body => $body);
    key_is("$name: found in a file", 'abc', '/temp', type => $type,
           body => $body);
    key_is("$name: found, byte by byte", 'abc', '/', type => $type,
           chunked => pieces($body, length $body > 1000 ? 1000 : 1));
}

key_is('a lone surrogate in a key', "x\xed\xa0\xbd", '/', type => $json,
       body => '{"tok":"x\ud83d"}');

for my $end ('--xxx--x', "--xxx\n", '--xxx-x', "--xxx\r\nX-Y: z\r\n",
             "--xxx\r\nfolded\r\n name\r\n\r\nz\r\n--xxx--", '--xx', '')
{
    my $body = "--xxx\r\n" . part(tok => 'abc') . "\r\n--xxx\r\n"
               . part(b => 1) . "\r\n$end";
    my $type = 'multipart/form-data; boundary=xxx';
    my $shown = $end =~ s/([\r\n])/sprintf '\\%o', ord $1/ger;

    # in one piece with what is wrong behind it, and cut in all ways
    key_is("multipart that ends in $shown", 'abc', '/', type => $type,
           body => $body);
    key_is("... in a file", 'abc', '/temp', type => $type, body => $body);
    key_is("... in pieces of $_ bytes", 'abc', '/', type => $type,
           chunked => pieces($body, $_)) for 1, 7, 80;
}

# --- of any size, with any buffer --------------------------------------------

for my $path (qw(/ /small)) {
    for my $m ([ $form, 'a=' . 'x' x 1_500_000 . '&tok=abc' ],
               [ $json, '{"a":"' . 'x' x 1_500_000 . '","tok":"abc"}' ])
    {
        key_is("1.5 MB of $m->[0] at $path", 'abc', $path, type => $m->[0],
               body => $m->[1]);
    }

    key_is("multipart, behind a file of 3 MB at $path", 'abc', $path,
           multipart(part(f => 'x' x 3_000_000, '; filename="x"'),
                     part(tok => 'abc')));
    key_is("multipart, behind fields at $path", 'abc', $path,
           multipart((map { part("f$_" => 'x' x 1000) } 1 .. 1200),
                     part(tok => 'abc')));
}

# --- where nobody can tell ---------------------------------------------------

unreadable(@$_) for
    [ 'a form, compressed', type => $form, body => 'tok=abc',
      headers => ['Content-Encoding: gzip'] ],
    [ 'JSON, compressed', type => $json, body => '{"tok":"abc"}',
      headers => ['Content-Encoding: br'] ],
    [ 'multipart, compressed', multipart(part(tok => 'abc')),
      headers => ['Content-Encoding: GZIP'] ],
    [ 'compressed in the second line of two', type => $form, body => 'a=1',
      headers => ['Content-Encoding: identity', 'Content-Encoding: x'] ],
    [ 'a form: malformed where it stands', type => $form, body => 'tok=%zz' ],
    [ 'a form: cut where it stands', type => $form, body => 'tok=ab%6' ],
    [ 'JSON that has no end', type => $json, body => '{"a":1' ],
    [ 'JSON in which it is cut', type => $json, body => '{"tok":"ab' ],
    [ 'JSON with names of another kind', type => $json,
      body => '{tok:"abc"}' ],
    [ 'JSON in UTF-16', type => $json,
      body => "\xff\xfe{\0\"\0t\0o\0k\0" ],
    [ 'a form under the name of JSON', type => $json, body => 'tok=abc' ],
    [ 'multipart that does not begin',
      type => 'multipart/form-data; boundary=yyy', body => '--xxx' ],
    [ 'multipart without a boundary', type => 'multipart/form-data',
      body => 'tok' ],
    [ 'multipart that does not end', type => 'multipart/form-data; boundary=x',
      body => "--x\r\n" . part(tok => 'abc') . "\r\n" ],
    [ 'multipart with line feeds', type => 'multipart/form-data; boundary=x',
      body => "--x\n" . part(tok => 'abc') . "\n--x--\n" ],
    [ 'a part whose name can be read in two ways',
      multipart(part('tok"; name="b' => 'abc')) ],
    [ 'a value that is too long', type => $form,
      body => 'tok=' . 'x' x 1_048_577 ];

{
    $id++;
    my $r = $n->post("/small?id=$id", type => $form,
                     body => 'tok=' . 'x' x 65_537);
    is(told($r), '400 MALFORMED', 'a value longer than the buffer and 64k');
    like($r->{body}, qr/too large/, '... is too large');
}

key_is('not encoded, and saying so', 'abc', '/', type => $form,
       body => 'tok=abc', headers => ['Content-Encoding: identity']);

# a source that comes behind it is not asked
{
    my @m = (type => $form, body => 'tok=abc',
             headers => ['Content-Encoding: gzip']);
    $id++;
    is(told($n->post("/first?id=$id", @m, key => 'h')), '400 MALFORMED',
       'a header behind a field that is not readable');
    is(told($n->post("/three?id=$id&x=1", @m)), '400 MALFORMED',
       'a value that is made of one');
    is(told($n->post("/mapped/none?id=$id", @m)), '400 MALFORMED',
       'a map of one');
    is(told($n->post("/header?id=$id", @m, key => 'h')), '200 NEW',
       'a header alone');
    is(executions($id), 1, '... executed once');
}

# whatever is normalised
for my $m ([ type => $form, body => 'tok=abc' ],
           [ type => $json, body => '{"tok":"abc"}' ],
           [ multipart(part(tok => 'abc')) ])
{
    key_is('with idempotency_normalize off', 'abc', '/raw', @$m);
}


# --- names -------------------------------------------------------------------

# A variable's name has letters, digits and '_', and no case: '_' stands for
# any other byte, as in $http_name.

for my $name (qw(order_id order-id order.id Order-Id ORDER_ID orDer[id
                 order/id), 'order id')
{
    my $escaped = $name =~ s/([^\w.-])/sprintf '%%%02x', ord $1/ger;

    key_is("a form: $name", 'abc', '/several', type => $form,
           body => "$escaped=abc");
    key_is("JSON: $name", 'abc', '/several', type => $json,
           body => "{\"$name\":\"abc\"}");
    key_is("multipart: $name", 'abc', '/several',
           multipart(part($name => 'abc')));
}

for my $name (qw(orderid order1id orderxid order_id_ order__id)) {
    $id++;
    is(told($n->post("/several?id=$id&order=", type => $form,
                     body => "$name=abc")), '200 NEW', "not: $name");
    is($n->post("/several?id=$id&order=", type => $form,
                body => "$name=abc")->header('X-Key'), '[/]',
       '... the last source is taken');
}


# --- sources -----------------------------------------------------------------

key_is('an empty header, then a field', 'abc', '/', type => $form,
       body => 'tok=abc', key => '');
key_is('a header wins', 'h', '/', type => $form, body => 'tok=abc',
       key => 'h');
key_is('a header without a field', 'h', '/', type => $form, body => 'a=1',
       key => 'h');
key_is('a field wins where it stands first', 'abc', '/first', type => $form,
       body => 'tok=abc', key => 'h');
key_is('... and a header follows', 'h', '/first', type => $form,
       body => 'a=abc', key => 'h');
key_is('the second field', 'abc', '/several', type => $form,
       body => 'order_id=abc');
key_is('the first of two fields', 'abc', '/several', type => $json,
       body => '{"order_id":"def","tok":"abc"}');
key_is('a part of a value', 's/', '/several', type => $form, body => 'shop=s');
key_is('through a map', '<abc>', '/mapped', type => $form, body => 'tok=abc');
key_is('through a map, where no field says that it takes the body', '<abc>',
       '/mapped/early', type => $form, body => 'tok=abc');
key_is('several fields in one', 'abcs', '/three', type => $json,
       body => '{"shop":"s","tok":"abc"}');

# one key by two ways is one key; the field is not part of the comparison
{
    $id++;
    is(join(', ', map { told($n->post("/?id=$id", type => $form, @$_)) }
                  [ key => 'abc', body => 'a=1' ],
                  [ body => 'a=1&tok=abc' ],
                  [ body => 'tok=%22abc%22&a=1' ],
                  [ body => 'tok=abc&a=2' ]),
       '200 NEW, 200 REPLAYED, 200 REPLAYED, 409 CONFLICT',
       'a header and a field are one key');
    is(executions($id), 1, '... executed once');
}

malformed($_->[0], '/', @$_[1 .. $#$_]) for
    [ 'two lines of the header', type => $form, body => 'tok=abc',
      headers => ['Idempotency-Key: a', 'Idempotency-Key: b'] ],
    [ 'a malformed header wins, too', type => $form, body => 'tok=abc',
      key => '"a' ],
    [ 'an unfinished string', type => $form, body => 'tok=%22abc' ],
    [ 'an empty string', type => $form, body => 'tok=%22%22' ],
    [ 'a line feed', type => $form, body => 'tok=a%0Ab' ],
    [ 'a zero byte', type => $form, body => 'tok=a%00b' ],
    [ 'DEL', type => $form, body => 'tok=a%7fb' ],
    [ 'a control character in JSON', type => $json, body => '{"tok":"a\tb"}' ],
    [ 'a line feed in multipart', multipart(part(tok => "a\r\nb")) ],
    [ 'too long', type => $form, body => 'tok=' . 'x' x 257 ];

malformed('no UUID', '/uuid', type => $form, body => 'tok=abc');
key_is('a UUID', '8e03978e-40d5-43dd-bc93-6894a57f9324', '/uuid',
       type => $form, body => 'tok=8e03978e-40d5-43dd-bc93-6894a57f9324');
key_is('256 bytes', 'x' x 256, '/', type => $form, body => 'tok=' . 'x' x 256);
key_is('a string', 'a"b', '/', type => $form, body => 'tok=%22a%5C%22b%22');
key_is('a string in JSON', 'a"b', '/', type => $json,
       body => '{"tok":"\"a\\\\\\"b\""}');
key_is('a quote within', 'a"b', '/', type => $json, body => '{"tok":"a\"b"}');
key_is('bytes above ASCII', "\xc3\xa9", '/', type => $json,
       body => '{"tok":"\u00e9"}');


# --- the buffer --------------------------------------------------------------

# The key is found, whether the body goes by its meaning or by its bytes.

for my $chunked (0, 1) {
    for my $size (100, 101) {
        my $more = 'x' x ($size - 24);

        for my $m ([ $form, "tok=abc&b=1&a=$more" . '&' x 6,
                     "a=$more&b=1&tok=abc" . '&' x 6 ],
                   [ $json, qq({"tok":"abc","a":"$more"}),
                     qq({"a":"$more","tok":"abc"}) ])
        {
            my ($type, @bodies) = @$m;
            $_ .= ' ' x ($size - length) for @bodies;
            s/&( +)$/'&' . '&' x length $1/e for @bodies;

            $id++;
            is(length $bodies[0], $size, 'of that size');
            is(join(', ', map {
                   told($n->post("/small?id=$id", type => $type, body => $_,
                                 chunked => $chunked))
               } @bodies[0, 0, 1]),
               '200 NEW, 200 REPLAYED, '
               . ($size == 100 ? '200 REPLAYED' : '409 CONFLICT'),
               "$type, $size bytes of 100, chunked $chunked");
        }
    }
}


# --- missing, and what then --------------------------------------------------

{
    $id++;
    my @m = (type => $form, body => 'a=1');
    is(join(', ', map { told($n->post("/content?id=$id", @$_)) }
                  \@m, \@m, [ type => $form, body => 'tok=abc&a=1' ],
                  [ type => $form, body => 'tok=abc&a=1' ]),
       '200 NEW, 200 REPLAYED, 200 NEW, 200 REPLAYED',
       'missing_key content: by its content without the field, by its key '
       . 'with it');
}

# The body of a refused request has been read: the connection goes on.
{
    my $c = $n->start(POST => '/reject?id=keepalive', type => $form,
                      body => 'a=1');
    is(told($c->response), '400 MISSING', 'refused for its body');
    $c->{method} = 'POST';
    $c->send(message(POST => '/reject?id=keepalive', type => $form,
                     body => 'tok=1'));
    is(told($c->response), '200 NEW', '... and the next one passes');
}

# A method that is not listed is not looked at.
is(told($n->request(PUT => "/reject?id=put", type => $form, body => 'a=1')),
   '200 -', 'another method needs no key');


# --- elsewhere ---------------------------------------------------------------

{
    my $r = $n->post('/early?id=early', type => $form, body => 'tok=abc');

    is($r->header('X-Seen'), '[][<>]', 'empty before the body has been read');
    is($r->header('X-Field'), '[abc]', '... and there afterwards');
    is(told($r), '200 NEW', '... as the key');
}

is($n->post('/off?id=off', type => $form, body => 'tok=abc')
   ->header('X-Field'), '[abc]', 'where nothing is protected');
is($n->get('/?id=get')->header('X-Field'), '[]', 'of a request without a body');

# one look at the body for all of them
for my $m ([ type => $form, body => 'shop=s&tok=abc' ],
           [ type => $json, body => '{"shop":"s","tok":"abc"}' ],
           [ multipart(part(shop => 's'), part(tok => 'abc')) ])
{
    my $r = $n->post('/off?id=others', @$m);
    is(join(' ', map { $r->header($_) } qw(X-Field X-Others)), '[abc] [s][]',
       "several where nothing is protected: $m->[1]");

    for my $path ('/ssi', '/ssi/off') {
        my @dyn = @$m;
        $dyn[3] =~ s/shop/dyn/;
        $id++;
        is($n->post("$path?id=$id", @dyn)->{body}, '[s]',
           "a name that only a page has, at $path: $m->[1]");
    }

    $id++;
    is($n->post("/ssi?id=$id", @$m)->{body}, '[]', '... and it is not there');
}

is($n->post('/off?id=long', type => $form,
            body => 'tok=abc&a=' . 'x' x 1_200_000)->header('X-Field'), '[abc]',
   'at the beginning of more than the buffer');
is($n->post('/off?id=long', type => $form,
            body => 'a=' . 'x' x 1_200_000 . '&tok=abc')->header('X-Field'),
   '[]', 'behind it, where nothing is protected');

$n->post('/upstream?id=up', type => $form, body => 'tok=a%20b');
like(last_request('up'), qr/^X-Token: a b$/m, 'for the upstream');

for my $where (qw(memory temp header header/temp off/temp)) {
    for my $m ([ type => $form, body => 'tok=abc' ],
               [ type => $json, body => '{"tok":"abc"}' ],
               [ multipart(part(tok => 'abc')) ])
    {
        $id++;
        $n->post("/log/$where?id=$id", key => $where =~ /header/ ? $id : '',
                 @$m);
        until_true { scalar($n->access_log =~ m{^$id }m) };

        # nginx gives a body's file up before it logs: then it is too late
        # where it was not read for us
        my $value = $where eq 'off/temp' ? '-' : 'abc';
        like($n->access_log, qr/^$id \[$value\]$/m,
             "in a log: $where, $m->[1]");
    }
}

done_testing();
