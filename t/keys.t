# SPEC, "Directives" and "What a request gets" 3: where the key comes from,
# what a well-formed one is, and how far a key reaches.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;


# Each case has a partition of its own (?id=), so that tables may use whatever
# key they like, over and over.

my $n = nginx(http => <<'EOC', server => <<'EOC');
    server {
        listen 127.0.0.1:$TEST_NGINX_PORT;
        server_name other;

        location / {
            idempotency zone=z;
            add_header X-Status $idempotency_status always;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }
    }

    server {
        listen 127.0.0.1:$TEST_NGINX_PORT;
        server_name one-scope;

        idempotency zone=z;
        idempotency_scope all;
        add_header X-Status $idempotency_status always;

        location / { proxy_pass http://$TEST_NGINX_BACKEND; }

        location /tenant {
            idempotency_scope "$http_x_tenant";
            proxy_pass http://$TEST_NGINX_BACKEND;
        }
    }

    server {
        listen 127.0.0.1:$TEST_NGINX_PORT;
        server_name cases;

        idempotency zone=z;
        idempotency_scope $arg_id;
        large_client_header_buffers 4 64k;

        add_header X-Status $idempotency_status always;
        add_header X-Key "[$idempotency_key]" always;
        add_header X-Token $idempotency_token always;

        location / { proxy_pass http://$TEST_NGINX_BACKEND; }

        location /reject {
            idempotency_missing_key reject;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /pass {
            idempotency_missing_key pass;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /any {
            idempotency_key_format any;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /string {
            idempotency_key_format sf-string;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /uuid {
            idempotency_key_format uuid;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /short {
            idempotency_key_max_length 8;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /long {
            idempotency_key_max_length 5000;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /sources {
            idempotency_key $http_idempotency_key $arg_k $cookie_k
                            $http_x_request_id;
            idempotency_identity me;
            idempotency_missing_key reject;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /composed {
            idempotency_key "$http_x_tenant/$http_x_request_id";
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /constant {
            idempotency_key one;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /path/ {
            idempotency_key $uri;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /put {
            idempotency_methods PUT DELETE;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }
    }
EOC
    location / {
        idempotency zone=z;
        add_header X-Status $idempotency_status always;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
EOC

my $id = 'case0';

sub told {
    my ($r) = @_;

    return $r ? "$r->{status} " . ($r->header('X-Status') // '-') : 'nothing';
}

# A request with a key, or with the request options in the key's place.

sub send_key {
    my ($path, $key, $method) = @_;

    return $n->request($method // 'POST', "$path?id=$id", host => 'cases',
                       body => 'b', ref $key ? @$key : (key => $key));
}

sub one_token {
    my ($path, $a, $b, $name) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    $id++;
    is(join(', ', map { told($_) } send_key($path, $a), send_key($path, $b)),
       '200 NEW, 200 REPLAYED', $name);
}

sub two_tokens {
    my ($path, $a, $b, $name) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    $id++;
    is(join(', ', map { told($_) } send_key($path, $a), send_key($path, $b)),
       '200 NEW, 200 NEW', $name);
}

sub malformed {
    my ($path, $key, $name) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    $id++;
    my $r = send_key($path, $key);
    is(told($r) . ', executed ' . executions($id), '400 MALFORMED, executed 0',
       $name);
}

sub key_is {
    my ($key, $content, $name) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    $id++;
    my $r = send_key('/', $key);
    is(told($r) . ' ' . ($r->header('X-Key') // ''), "200 NEW [$content]",
       $name);
}


# The default: the Idempotency-Key header.

one_token('/', 'abc', 'abc', 'a key is a key');
two_tokens('/', 'abc', 'abd', 'another key is another token');

$id++;
is(join(', ', map { told(send_key('/', [])) } 1, 2), '200 -, 200 -',
   'no key, no protection');
is(executions($id), 2, '... executed each time');

$id++;
is(join(', ', map { told(send_key('/', '')) } 1, 2), '200 -, 200 -',
   'an empty header is no key');


# Opaque and byte-exact.

two_tokens('/', 'abc', 'ABC', 'case matters');
two_tokens('/', 'a b', 'a  b', 'inner spaces matter');
two_tokens('/', 'abc', 'abc;v=1', 'a bare value has no parameters');
two_tokens('/', 'abc', 'abc"', 'a quote later on is but a byte');
two_tokens('/', '1', '01', 'numbers are no numbers');
one_token('/', 'abc', '  abc  ', 'spaces around a header value are not of it');
one_token('/', "\xc3\xa9", "\xc3\xa9", 'bytes above ASCII, bare');
two_tokens('/', "\xc3\xa9", "\xc3\xa8", 'bytes above ASCII matter');
two_tokens('/', '%61', 'a', 'nothing is decoded');
one_token('/', 'a, b', 'a, b', 'a bare comma is but a byte');


# RFC 8941 strings.

one_token('/', 'abc', '"abc"', 'a string is its content');
one_token('/', '"abc"', 'abc', '... and the other way round');
two_tokens('/', '"abc"', '"ABC"', 'case matters in strings too');
two_tokens('/', '"abc"', '" abc "', 'spaces within a string are of it');
one_token('/', '"a\\"b"', 'a"b', 'an escaped quote');
one_token('/', '"a\\\\b"', 'a\\b', 'an escaped backslash');
key_is('"\\"\\\\\\""', '"\\"', 'escapes only');
key_is('"a b;c,d"', 'a b;c,d', 'all else is taken as it is');

for my $p ('; v=1', ';v=1', ';v', ';a;b=2', '; s="x;\\"y"', ';q=0.5', ';t=?1',
           ';b=:YWJj:', ';tok=*a/b')
{
    one_token('/', 'abc', "\"abc\"$p", "parameters are ignored: $p");
}

malformed('/', $_->[0], $_->[1]) for
    [ '"abc', 'an unfinished string' ],
    [ '"', 'a quote alone' ],
    [ '"abc\\"', 'a string whose last quote is escaped' ],
    [ '"abc\\', 'an unfinished escape' ],
    [ '"a\\bc"', 'an escape of something else' ],
    [ '""', 'an empty string' ],
    [ '"a"b', 'a string and more' ],
    [ '"a" b', 'a string, a space and more' ],
    [ '"a", "b"', 'two strings' ],
    [ '"a""b"', 'two strings with nothing between' ],
    [ "\"\xc3\xa9\"", 'bytes above ASCII in a string' ];


# Control characters, in both forms and from other sources too.

malformed('/', "a\tb", 'a tab');
malformed('/', "a\x01b", 'a control character');
malformed('/', "a\x1fb", 'the last control character');
malformed('/', "a\x7fb", 'DEL');
malformed('/', "\"a\tb\"", 'a tab in a string');
malformed('/', "\"a\x7fb\"", 'DEL in a string');
malformed("/path/$_->[0]", [], $_->[1]) for
    [ 'a%01b', 'a control character from a decoded path' ],
    [ 'a%0ab', 'a line feed from a decoded path' ],
    [ 'a%7Fb', 'DEL from a decoded path' ];


# More than one header line.

malformed('/', [ headers => [ 'Idempotency-Key: a', 'Idempotency-Key: b' ] ],
          'two lines');
malformed('/', [ headers => [ 'Idempotency-Key: a', 'Idempotency-Key: a' ] ],
          'two lines that are the same');
malformed('/', [ headers => [ 'Idempotency-Key: a', 'idempotency-key: a' ] ],
          'two lines, in another case');
malformed('/', [ headers => [ 'Idempotency-Key: a', 'Idempotency-Key:' ] ],
          'two lines, one of them empty');
malformed('/sources', [ headers => [ 'X-Request-ID: a', 'X-Request-ID: b' ] ],
          'two lines of another header that is a source');


# Length: that of the key, which for a string is its content.

one_token('/', 'k' x 256, 'k' x 256, '256 bytes are a key');
malformed('/', 'k' x 257, '257 bytes are not');
one_token('/', 'k' x 256, '"' . 'k' x 256 . '"', '256 bytes in a string');
malformed('/', '"' . 'k' x 257 . '"', '257 bytes in a string');
one_token('/', 'k' . '"' x 255, '"k' . '\\"' x 255 . '"',
          '256 bytes after the escapes are resolved');
two_tokens('/', 'k' x 255 . 'a', 'k' x 255 . 'b', 'the last byte matters');

one_token('/short', '12345678', '"12345678"', 'a limit of 8: 8 bytes');
malformed('/short', '123456789', 'a limit of 8: 9 bytes');
one_token('/long', 'k' x 5000, 'k' x 5000, 'a limit of 5000');
malformed('/long', 'k' x 5001, 'a limit of 5000: one byte more');


# Formats.

one_token('/any', 'abc', '"abc"', 'format any takes both');

one_token('/string', '"abc"', '"abc"', 'format sf-string');
one_token('/string', '"abc"', '"abc";a=1', 'format sf-string with a parameter');
malformed('/string', 'abc', 'format sf-string: a bare key');
malformed('/string', '8e03978e-40d5-43dd-bc93-6894a57f9324',
          'format sf-string: a bare UUID');
malformed('/string', '""', 'format sf-string: an empty string');

my $uuid = '8e03978e-40d5-43dd-bc93-6894a57f9324';

one_token('/uuid', $uuid, $uuid, 'format uuid');
one_token('/uuid', $uuid, "\"$uuid\"", 'format uuid, as a string');
one_token('/uuid', uc $uuid, uc $uuid, 'format uuid, upper case');
two_tokens('/uuid', $uuid, uc $uuid, 'format uuid folds no case either');
one_token('/uuid', '0' x 8 . '-0000-0000-0000-' . '0' x 12,
          '"' . '0' x 8 . '-0000-0000-0000-' . '0' x 12 . '"',
          'format uuid: the nil UUID');

malformed('/uuid', $_->[0], "format uuid: $_->[1]") for
    [ 'abc', 'something else' ],
    [ substr($uuid, 0, 35), 'too short' ],
    [ "${uuid}0", 'too long' ],
    [ $uuid =~ s/.$/g/r, 'not a hexadecimal digit' ],
    [ $uuid =~ s/^./-/r, 'a hyphen for a digit' ],
    [ $uuid =~ s/-/0/r, 'a digit for a hyphen' ],
    [ $uuid =~ s/-//gr, 'no hyphens' ],
    [ "{$uuid}", 'in braces' ],
    [ "urn:uuid:$uuid", 'as a URN' ];


# No key: pass, the default, or reject.

$id++;
is(join(', ', map { told(send_key('/pass', [])) } 1, 2), '200 -, 200 -',
   'missing_key pass');
is(executions($id), 2, '... executed each time');

$id++;
is(told(send_key('/reject', [])), '400 MISSING', 'missing_key reject');
is(told(send_key('/reject', '')), '400 MISSING', '... an empty header');
is(executions($id), 0, '... executed never');
is(told(send_key('/reject', 'k')), '200 NEW', '... with a key');
is(told($n->get("/reject?id=$id", host => 'cases')), '200 -',
   '... a method that is not listed needs none');


# Sources: the first that is not empty.

my @h = (headers => [ 'X-Request-ID: k' ]);
my @c = (headers => [ 'Cookie: a=1; k=k' ]);

one_token('/sources', [ key => 'k' ], \@h, 'a header, then another header');
one_token('/sources', \@c, \@h, 'a cookie, then a header');
one_token('/sources', [ key => 'k', @h ], [ key => 'k' ], 'two, the same');
one_token('/sources', [ key => 'k', headers => [ 'X-Request-ID: other' ] ], \@h,
          'the first wins');
two_tokens('/sources', [ key => 'other', @h ], \@h, '... and not the last');
one_token('/sources', [ key => '', @h ], \@h, 'an empty one is passed over');
one_token('/sources', [ key => '"k"' ],
          [ headers => [ 'X-Request-ID: "k"' ] ], 'strings in any of them');
malformed('/sources', [ key => '"k', @h ],
          'the first is malformed: no other is tried');
malformed('/sources', [ key => '""', @h ],
          'the first is an empty string: no other is tried');

$id++;
is(told(send_key('/sources', [])), '400 MISSING', 'all of them empty');

for my $k ('arg', '"arg"', 'a%20b') {
    $id++;
    is(join(', ', map {
           told($n->post("/sources?id=$id&k=$k", host => 'cases'))
       } 1, 2),
       '200 NEW, 200 REPLAYED', "an argument: $k");
}

$id++;
is(told($n->post("/sources?id=$id&k=%22a", host => 'cases')), '200 NEW',
   'an argument is taken as it is, not decoded');

one_token('/composed', [ headers => [ 'X-Tenant: a', 'X-Request-ID: 1' ] ],
          [ headers => [ 'X-Request-ID: 1', 'X-Tenant: a' ] ],
          'a composed key');
two_tokens('/composed', [ headers => [ 'X-Tenant: a', 'X-Request-ID: 1' ] ],
           [ headers => [ 'X-Tenant: b', 'X-Request-ID: 1' ] ],
           'a composed key: the one part');
two_tokens('/composed', [ headers => [ 'X-Tenant: a', 'X-Request-ID: 1' ] ],
           [ headers => [ 'X-Tenant: a', 'X-Request-ID: 2' ] ],
           'a composed key: the other part');
one_token('/composed', [ key => '1' ], [ key => '2' ],
          'the header is not looked at where it is no source');
one_token('/constant', [], [], 'a string without variables');
one_token('/path/x', [], [], 'a path');


# Methods.

for my $m (qw(POST PATCH)) {
    $id++;
    is(join(', ', map { told(send_key('/', 'k', $m)) } 1, 2),
       '200 NEW, 200 REPLAYED', "$m by default");
}

for my $m (qw(PUT DELETE GET OPTIONS)) {
    $id++;
    is(join(', ', map { told(send_key('/', 'k', $m)) } 1, 2), '200 -, 200 -',
       "$m not by default");
    is(executions($id), 2, '... executed each time');
}

for my $m (qw(PUT DELETE)) {
    $id++;
    is(join(', ', map { told(send_key('/put', 'k', $m)) } 1, 2),
       '200 NEW, 200 REPLAYED', "$m when listed");
}

for my $m (qw(POST PATCH)) {
    $id++;
    is(join(', ', map { told(send_key('/put', 'k', $m)) } 1, 2),
       '200 -, 200 -', "$m when others are listed");
}


# Scope.

is(join(', ', map { told($n->post('/x?id=scope1', key => 'scope',
                                  host => $_)) } qw(localhost other) x 2),
   '200 NEW, 200 NEW, 200 REPLAYED, 200 REPLAYED',
   'two servers, one zone, one key: two tokens by default');

is(join(', ', map { told($n->post($_, key => 'scope2')) }
              '/x?id=scope2', '/y?id=scope2'),
   '200 NEW, 409 CONFLICT',
   'two locations of a server share its keys');

is(join(', ', map { told($n->post('/x?id=scope3', key => 'scope3',
                                  host => 'one-scope',
                                  headers => [ "X-Tenant: $_" ])) } qw(a b)),
   '200 NEW, 200 REPLAYED', 'a constant scope');

is(join(', ', map { told($n->post('/tenant?id=scope4', key => 'scope4',
                                  host => 'one-scope',
                                  headers => [ "X-Tenant: $_" ])) }
              qw(a b a b)),
   '200 NEW, 200 NEW, 200 REPLAYED, 200 REPLAYED', 'a scope for each tenant');

# Where scope ends and key begins must not be a matter of taste.
is(join(', ', map { told($n->post('/tenant?id=scope5', key => $_->[1],
                                  host => 'one-scope',
                                  headers => [ "X-Tenant: $_->[0]" ])) }
              [ 'ab', 'c' ], [ 'a', 'bc' ], [ 'abc', '' ], [ '', 'abc' ]),
   '200 NEW, 200 NEW, 200 -, 200 NEW', 'scope and key do not run together');

done_testing();
