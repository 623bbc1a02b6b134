# SPEC, "Normalised body digest": bodies that mean the same are one request,
# anything else is a conflict. Each rule is shown in both directions; that each
# digest is the right one is shown in t/digest.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;


my $lua = has_module('ngx_http_lua_module') && has_module('ndk_http_module');

my %locations = (
    ''        => '',
    off       => 'idempotency_normalize off;',
    form      => 'idempotency_normalize form;',
    json      => 'idempotency_normalize json;',
    multipart => 'idempotency_normalize multipart;',
    text      => 'idempotency_normalize text;',
    all       => 'idempotency_normalize form json multipart text;',
    buffer    => 'idempotency_normalize form json multipart text;
                  idempotency_normalize_buffer 100;',
    most      => 'idempotency_normalize_buffer 2m;',
    stream    => 'proxy_request_buffering off;',
    tiny      => 'client_body_buffer_size 1k;',
    file      => 'client_body_in_file_only clean;',
    mirror    => 'satisfy any; allow all; mirror /copy;',
    ignore    => 'idempotency_ignore_fields csrf ts;
                  idempotency_ignore_fields /meta/ts /items/0/note /a~1b/c~0d
                                            /top "" /list/2 /~01;',
    ignoreoff => 'idempotency_normalize off; idempotency_ignore_fields csrf;',
    ignoreall => 'idempotency_normalize text form;
                  idempotency_ignore_fields csrf;',
    tryall    => 'idempotency_normalize off; try_files /none @all;',
    tryoff    => 'try_files /none @off;',
    $lua ? (lua => 'rewrite_by_lua_block { ngx.req.read_body() }
                    client_body_buffer_size 1k;') : (),
);

my $locations = join '', map {
    "location /$_ { $locations{$_} proxy_pass http://\$TEST_NGINX_BACKEND; }\n"
} sort keys %locations;

$locations .= join '', map {
    "location \@$_ { $locations{$_} proxy_pass http://\$TEST_NGINX_BACKEND; }\n"
} qw(all off);

my $n = nginx(modules => [$lua ? qw(ndk_http_module ngx_http_lua_module) : ()],
              http => <<'EOC', server => <<EOC2);
    client_max_body_size 16m;
    idempotency zone=z;
    add_header X-Status $idempotency_status always;
    add_header X-Digest $idempotency_digest always;

    server {
        listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1 http2;
        location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    }
EOC
location = /copy {
    internal;
    proxy_pass http://\$TEST_NGINX_BACKEND/copy?id=copy\$arg_none;
}
$locations
EOC2

my $id = 'case0';

sub upstream_body { return (split /\n\n/, last_request($id), 2)[1] }

sub told {
    my ($r) = @_;

    return "$r->{status} " . ($r->header('X-Status') // '-');
}

# Two requests with one key. Each is a hash of request options, and which path.

sub both {
    my ($one, $two) = @_;

    $id++;

    my @r = map {
        my %o = %$_;
        my $path = delete $o{path} // '';
        $n->post("/$path?id=$id", key => $id, %o)
    } $one, $two;

    my ($a, $b) = map { $_->header('X-Digest') // '' } @r;

    return told($r[0]) . ', ' . told($r[1])
           . (!length $a ? ', no digest'
              : $a eq $b ? ', equal' : ', different');
}

sub same {
    my ($name, $one, $two) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    is(both($one, $two), '200 NEW, 200 REPLAYED, equal', "same: $name");

    # whatever was understood of it, the upstream gets what was sent
    ok(upstream_body() eq ($one->{body} // join '', @{$one->{chunked}}),
       '... and the upstream got the first as it was sent');
}

sub other {
    my ($name, $one, $two) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    is(both($one, $two), '200 NEW, 409 CONFLICT, different', "other: $name");
    is(executions($id), 1, '... is not executed');
}

# A type's bodies, two of them and how they differ in each line.

sub table {
    my ($type, $path, @rows) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    for (@rows) {
        my ($verdict, $name, @bodies) = @$_;

        my @m = map { { type => $type, path => $path, body => $_ } } @bodies;

        $verdict eq 'same' ? same("$path $name", @m)
                           : other("$path $name", @m);
    }
}


# --- forms -------------------------------------------------------------------

my $form = 'application/x-www-form-urlencoded';

table($form, '',
    [ same => 'the order of fields', 'a=1&b=2&c=3', 'c=3&a=1&b=2' ],
    [ same => 'the order of a field and one with a bracket', 'a=1&item[]=x',
      'item%5B%5D=x&a=1' ],
    [ other => 'the order of fields with brackets',
      'item[][name]=A&item[][gift]=1&item[][name]=B',
      'item[][name]=A&item[][name]=B&item[][gift]=1' ],
    [ other => 'the order of fields with brackets, escaped',
      'x%5b1%5d=1&y%5B1%5D=2', 'y%5B1%5D=2&x%5b1%5d=1' ],
    [ same => 'percent encoding', 'abc=xyz', '%61b%63=%78%79z' ],
    [ same => 'the case of its digits', '%c3%af=%c3%a9', '%C3%AF=%C3%A9' ],
    [ same => 'bytes above ASCII, raw', "\xc3\xaf=\xc3\xa9", '%C3%AF=%C3%A9' ],
    [ same => 'a plus sign and %20', 'a+b=x+y', 'a%20b=x%20y' ],
    [ same => 'no value', 'a&b=1', 'b=1&a=' ],
    [ same => 'empty pairs', 'a=1&b=2', '&a=1&&&b=2&' ],
    [ same => 'a pair that is empty but for its equals sign', 'a=1', 'a=1&=' ],
    [ same => 'nothing but empty pairs', '', '&&' ],
    [ same => 'equal names, their order kept', 'a=1&b=3&a=2', 'a=1&a=2&b=3' ],
    [ same => 'an equals sign in a value', 'a=b=c', 'a=b%3Dc' ],
    [ same => '200 fields', join('&', map { "f$_=$_" } 1 .. 200),
      join('&', map { "f$_=$_" } reverse 1 .. 200) ],

    [ other => 'a value', 'a=1&b=2', 'a=1&b=3' ],
    [ other => 'a name', 'a=1&b=2', 'a=1&c=2' ],
    [ other => 'letter case of a value', 'a=x', 'a=X' ],
    [ other => 'letter case of a name', 'a=x', 'A=x' ],
    [ other => 'one field more', 'a=1', 'a=1&b=' ],
    [ other => 'one field less', 'a=1&b=2', 'b=2' ],
    [ other => 'the order of equal names', 'a=1&a=2', 'a=2&a=1' ],
    [ other => 'a field twice', 'a=1', 'a=1&a=1' ],
    [ other => 'values exchanged', 'a=1&b=2', 'a=2&b=1' ],
    [ other => 'a name that is empty', 'a=1', 'a=1&=1' ],
    [ other => 'where the name ends', 'ab=c', 'a=bc' ],
    [ other => 'name and value exchanged', 'a=', '=a' ],
    [ other => 'an ampersand in a value', 'a=1&b=2', 'a=1%26b=2' ],
    [ other => 'an equals sign in a name', 'a=b=c', 'a%3Db=c' ],
    [ other => 'a plus sign that is one', 'a=+', 'a=%2B' ],
    [ other => 'a zero byte', 'a=', 'a=%00' ],
    [ other => 'what stands behind a zero byte', 'a=%00x', 'a=%00y' ],
    [ other => 'white space, as text is not listed', 'a=x+y', 'a=x++y' ],
    [ other => 'white space at the end', 'a=x', 'a=x+' ],
    [ other => 'a semicolon, which is no separator', 'a=1&b=2', 'a=1;b=2' ],
    [ other => 'encoded twice', 'a=%20', 'a=%2520' ],

    # malformed: by its bytes
    [ same => 'malformed, its very bytes', 'a=%zz&b=1', 'a=%zz&b=1' ],
    [ other => 'malformed, in another order', 'a=%zz&b=1', 'b=1&a=%zz' ],
    [ other => 'malformed, an escape that ends early', 'b=1&a=%4', 'a=%4&b=1' ],
    [ other => 'malformed, spelled as it might be meant', 'a=%', 'a=%25' ],
);


# --- JSON --------------------------------------------------------------------

my $json = 'application/json';
my $grin = "\xf0\x9f\x98\x80";
my $deep = ('[' x 256) . (']' x 256);
my $deeper = ('[' x 257) . (']' x 257);
my $long = '9' x 400;

table($json, '',
    [ same => 'white space', '{"a":[1,2],"b":null}',
      " {\n\t\"a\" : [ 1 ,\r\n2 ] , \"b\":null } \n" ],
    [ same => 'the order of members', '{"a":1,"b":{"c":2,"d":3}}',
      '{"b":{"d":3,"c":2},"a":1}' ],
    [ same => 'escapes', '"A/\u00e9\n"', "\"\\u0041\\/\xc3\xa9\\u000A\"" ],
    [ same => 'escapes in names', '{"ab":1,"c":2}', '{"c":2,"\u0061b":1}' ],
    [ same => 'surrogate pairs', '"\ud83d\uDE00"', "\"$grin\"" ],
    [ same => 'a number with a fraction of zero', '[1]', '[1.0]' ],
    [ same => 'a number with an exponent', '[1]', '[1e0]' ],
    [ same => 'a power of ten', '[1500]', '[1.5E+3]' ],
    [ same => 'a fraction', '[0.001]', '[1e-3]' ],
    [ same => 'a trailing zero', '[0.1]', '[0.10]' ],
    [ same => 'a negative number', '[-20]', '[-2e1]' ],
    [ same => 'zero, negative', '[0]', '[-0]' ],
    [ same => 'zero, however large its exponent', '[0]', '[-0.00e999]' ],
    [ same => 'beyond any double', '[1e400]', '[10e399]' ],
    [ same => 'a large number with a fraction', "[$long]", "[$long.0]" ],
    [ same => 'a scalar', '1', '1.0' ],
    [ same => 'equal names, their order kept', '{"b":0,"a":1,"a":2}',
      '{"a":1,"b":0,"a":2}' ],
    [ same => '256 levels', $deep, " $deep" ],
    [ same => '100 members', '{' . join(',', map { "\"m$_\":$_" } 1 .. 100)
      . '}', '{' . join(',', map { "\"m$_\":$_" } reverse 1 .. 100) . '}' ],

    [ other => 'a value', '{"a":1}', '{"a":2}' ],
    [ other => 'a name', '{"a":1}', '{"b":1}' ],
    [ other => 'letter case', '{"a":"x"}', '{"a":"X"}' ],
    [ other => 'a string and a number', '{"a":"1"}', '{"a":1}' ],
    [ other => 'a string and true', '["true"]', '[true]' ],
    [ other => 'null and nothing', '{"a":null}', '{}' ],
    [ other => 'null and an empty string', '{"a":null}', '{"a":""}' ],
    [ other => 'false and null', '[false]', '[null]' ],
    [ other => 'false and zero', '[false]', '[0]' ],
    [ other => 'an object and an array', '{}', '[]' ],
    [ other => 'an array and its element', '[1]', '1' ],
    [ other => 'the order of elements', '[1,2]', '[2,1]' ],
    [ other => 'one element more', '[1]', '[1,1]' ],
    [ other => 'how elements are nested', '[[1],2]', '[[1,2]]' ],
    [ other => 'where a member stands', '{"a":{"b":1},"c":2}',
      '{"a":{"b":1,"c":2}}' ],
    [ other => 'white space in a string', '["a b"]', '["a  b"]' ],
    [ other => 'composed and decomposed', '["\u00e9"]', '["e\u0301"]' ],
    [ same => 'half a surrogate pair, white space', '["\ud83d"]',
      ' [ "\uD83D" ]' ],
    [ other => 'half a surrogate pair and another', '["\ud83d"]',
      '["\ud83c"]' ],
    [ other => 'half a surrogate pair and a character', '["\ud800\ue000"]',
      '["\ud801\udc00"]' ],
    [ other => 'a sign', '[1]', '[-1]' ],
    [ other => 'the last digit of a large number', '[9007199254740993]',
      '[9007199254740992]' ],
    [ other => 'the last of 400 digits', "[${long}1]", "[${long}2]" ],
    [ other => 'the last digit of a fraction', '[0.30000000000000004]',
      '[0.3]' ],
    [ other => 'beyond any double', '[1e400]', '[1e401]' ],
    [ other => 'below any double', '[1e-400]', '[0]' ],
    [ other => 'equal names, their order', '{"a":1,"a":2}', '{"a":2,"a":1}' ],
    [ other => 'equal names, the last alone', '{"a":1,"a":2}', '{"a":2}' ],
    [ other => 'equal names, the first alone', '{"a":1,"a":2}', '{"a":1}' ],

    # by its bytes
    [ same => '257 levels, the very bytes', $deeper, $deeper ],
    [ other => '257 levels, white space', $deeper, " $deeper" ],
    [ same => 'invalid, the very bytes', '{"a":1,}', '{"a":1,}' ],
    map({ [ other => "invalid: $_->[0]", $_->[1], "$_->[1] " ] }
        [ 'a comma too much', '{"a":1,}' ],
        [ 'no number', '[NaN]' ],
        [ 'a leading zero', '[01]' ],
        [ 'a leading plus sign', '[+1]' ],
        [ 'a fraction without digits', '[1.]' ],
        [ 'a single quote', "{'a':1}" ],
        [ 'a comment', '[1/**/]' ],
        [ 'unfinished', '{"a":1' ],
        [ 'more behind it', '{} {}' ],
        [ 'a byte order mark', "\xef\xbb\xbf{}" ],
        [ 'a control character in a string', "[\"\t\"]" ],
        [ 'an unknown escape', '["\x"]' ],
        [ 'no UTF-8', "[\"\xff\"]" ],
        [ 'a form', 'a=1&b=2' ],
        [ 'nothing but white space', "\n" ]),
    [ other => 'invalid and empty', '', ' ' ],
);

for my $type ('application/problem+json', 'application/vnd.api+json',
              'image/x+json', 'Application/LD+JSON; charset=utf-8')
{
    table($type, '',
        [ same => "the type $type", '{"a":1,"b":2}', '{ "b":2, "a":1 }' ],
        [ other => "the type $type", '{"a":1,"b":2}', '{"a":1,"b":3}' ]);
}

for my $type ('text/json', 'application/jsonp', 'application/x-json',
              'application/json-seq', 'application/+jsonx')
{
    table($type, '',
        [ same => "$type, its bytes", '{"a":1}', '{"a":1}' ],
        [ other => "$type is not JSON", '{"a":1}', '{"a":1} ' ]);
}


# --- multipart ---------------------------------------------------------------

sub part {
    my ($name, $body, %o) = @_;

    my $file = defined $o{file} ? "; filename=\"$o{file}\"" : '';
    my $type = defined $o{type} ? "Content-Type: $o{type}\r\n" : '';

    return "Content-Disposition: form-data; name=\"$name\"$file\r\n$type"
           . ($o{more} // '') . "\r\n$body";
}

sub multipart {
    my ($boundary, @parts) = @_;

    return ( type => "multipart/form-data; boundary=$boundary",
             body => join('', map { "--$boundary\r\n$_\r\n" } @parts)
                     . "--$boundary--\r\n" );
}

sub parts {
    my ($verdict, $name, $one, $two, %o) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my @m = ({ multipart('xxx', @$one), %o }, { multipart('xxx', @$two), %o });

    $verdict eq 'same' ? same("multipart: $name", @m)
                       : other("multipart: $name", @m);
}

my @a = (part(a => '1'), part(b => '2'));
my @i = (part('i[][n]' => 'A'), part('i[][n]' => 'B'));
my @f = (part(a => '1'),
         part(f => "\0\r\n--xx\r\n", file => 'x.png', type => 'image/png'));

parts(same => 'a part and those with brackets',
      [@i, $a[0]], [$a[0], @i]);
parts(other => 'the order of parts with brackets',
      [$i[0], part('i[][g]' => 1), $i[1]], [@i, part('i[][g]' => 1)]);
same('multipart: the boundary', { multipart('xxx', @f) },
     { multipart('----WebKitFormBoundary7MA4YWxkTrZu0gW', @f) });
same('multipart: a boundary in quotes', { multipart('xxx', @f) },
     { multipart('xxx', @f), type => 'multipart/form-data; boundary="xxx"' });
same('multipart: the case of its type', { multipart('xxx', @f) },
     { multipart('xxx', @f), type => 'Multipart/Form-Data;BOUNDARY=xxx' });
same('multipart: a charset', { multipart('xxx', @f) },
     { multipart('xxx', @f),
       type => 'multipart/form-data; charset=utf-8; boundary=xxx' });

parts(same => 'the order of parts', [@f], [reverse @f]);
parts(same => 'equal names, their order kept', [@a, part(a => '3')],
      [$a[0], part(a => '3'), $a[1]]);
parts(same => 'a header of a part that says nothing of it', [@a],
      [$a[0], part(b => '2', more => "X-Some: thing\r\n")]);
parts(same => 'the case of its headers', [@a],
      [$a[0], "content-DISPOSITION:form-data;NAME=b\r\n\r\n2"]);
parts(same => "the case of a part's type", [part(f => '1', type => 'text/Xml')],
      [part(f => '1', type => 'Text/xml')]);
parts(same => '100 parts', [map { part("p$_" => $_) } 1 .. 100],
      [map { part("p$_" => $_) } reverse 1 .. 100]);

parts(other => 'a value', [@a], [$a[0], part(b => '3')]);
parts(other => 'a name', [@a], [$a[0], part(c => '2')]);
parts(other => 'one part more', [@a], [@a, part(c => '')]);
parts(other => 'one part less', [@a], [$a[1]]);
parts(other => 'a part twice', [@a], [@a, $a[1]]);
parts(other => 'the order of equal names', [part(a => 1), part(a => 2)],
      [part(a => 2), part(a => 1)]);
parts(other => 'values exchanged', [@a], [part(a => '2'), part(b => '1')]);
parts(other => 'a file name', [part(f => 1, file => 'x')],
      [part(f => 1, file => 'y')]);
parts(other => 'a file and a field', [part(f => 1, file => 'x')],
      [part(f => 1)]);
parts(other => 'a file without a name and a field', [part(f => 1, file => '')],
      [part(f => 1)]);
parts(other => "a part's type", [part(f => 1, type => 'text/html')],
      [part(f => 1, type => 'text/xml')]);
parts(other => "a part's type and none", [part(f => 1, type => 'text/xml')],
      [part(f => 1)]);
parts(other => 'a line end at the end', [part(a => '1')], [part(a => "1\r\n")]);
parts(other => 'white space, as text is not listed', [part(a => 'x y')],
      [part(a => 'x  y')]);
parts(other => 'no part at all', [], [part('' => '')]);

# What is no multipart form, or might be read in two ways, goes by its bytes:
# there the boundary counts.

my %bad = (
    'no last delimiter' => sub { my %m = multipart($_[0], @a);
                                 $m{body} =~ s/--\r\n\z/\r\n/; %m },
    'text before it' => sub { my %m = multipart($_[0], @a);
                              (%m, body => "x\r\n$m{body}") },
    'text behind it' => sub { my %m = multipart($_[0], @a);
                              (%m, body => "$m{body}x") },
    'line feeds alone' => sub { my %m = multipart($_[0], @a);
                                $m{body} =~ s/\r//g; %m },
    'a part without a name' =>
        sub { multipart($_[0], "Content-Disposition: form-data\r\n\r\n1") },
    'a part without a header' => sub { multipart($_[0], "\r\n1") },
    'a name twice' => sub { multipart($_[0], 'Content-Disposition: form-data;'
                                      . " name=a; name=b\r\n\r\n1") },
    'an encoded part' =>
        sub { multipart($_[0], part(a => 'MQ==', more =>
                        "Content-Transfer-Encoding: base64\r\n")) },
    'another boundary' =>
        sub { my %m = multipart($_[0], @a);
              (%m, type => 'multipart/form-data; boundary=' . uc $_[0]) },
    'no form-data' =>
        sub { my %m = multipart($_[0], @a);
              (%m, type => "multipart/mixed; boundary=$_[0]") },
    'empty' => sub { ( type => "multipart/form-data; boundary=$_[0]",
                       body => '') },
);

for (sort keys %bad) {
    my $make = $bad{$_};

    same("multipart malformed, the very bytes: $_", { $make->('xxx') },
         { $make->('xxx') });
    other("multipart malformed, by its bytes: $_", { $make->('xxx') },
          { $make->('yyy') });
}

other('multipart without a boundary: by its bytes',
      { multipart('xxx', @a), type => 'multipart/form-data' },
      { multipart('xxx', reverse @a), type => 'multipart/form-data' });

# Files are larger than the buffers for bodies and for normalisation: of them
# nothing is kept, and neither size matters.

for my $path (grep { !/ignore|off$|^form$|^json$|^text$/ }
              sort keys %locations)
{
    for my $size (900, 70_000, $path eq '' ? 3_000_000 : ()) {
        my $bytes = pattern($size, 1);
        (my $last = $bytes) =~ s/.\z/!/s;

        my ($field, $file, $another)
            = (part(a => '1'), map { part(f => $_, file => 'x') }
                               $bytes, $last);

        for my $chunked (0, 1) {
            my $how = "$size bytes at /$path" . ($chunked ? ', chunked' : '');

            same("a file of $how",
                 { multipart('xxx', $field, $file), path => $path },
                 { multipart('zz', $file, $field), path => $path,
                   chunked => $chunked });
            other("a file of $how, its last byte",
                  { multipart('xxx', $field, $file), path => $path,
                    chunked => $chunked },
                  { multipart('xxx', $field, $another), path => $path });
        }

        # known to be malformed only when all of it was digested as a form
        my ($m, $o) = map { my %m = multipart('xxx', $field, $_);
                            $m{body} .= 'malformed';
                            +{ %m, path => $path } } $file, $another;

        same("a malformed file of $size bytes at /$path", $m, $m);
        other("a malformed file of $size bytes at /$path", $m, $o);
        other("a malformed file of $size bytes at /$path, in another order",
              $m, { multipart('xxx', $file, $field), path => $path });
    }
}

# ... and a delimiter may be cut anywhere.
{
    my %m = multipart('xxx', @f);

    for my $size (1 .. 7) {
        same("multipart in pieces of $size bytes",
             { type => $m{type}, chunked => [unpack "(a$size)*", $m{body}] },
             { %m });
    }
}


# --- text --------------------------------------------------------------------

my $nbsp = "\xc2\xa0";
my $wide = "\xe3\x80\x80";

for my $path (qw(text all)) {
    table('text/plain', $path,
        [ same => 'a run of white space', 'a b', "a \t\r\n b" ],
        [ same => 'white space at the ends', 'a b', "\n a b \n" ],
        [ same => "Unicode's white space", 'a b',
          "$wide a$nbsp\xe2\x80\xa8b$nbsp" ],
        [ same => 'nothing but white space', '', " \n$nbsp" ],
        [ other => 'letter case', 'a b', 'A b' ],
        [ other => 'no white space', 'a b', 'ab' ],
        [ other => 'a word', 'a b', 'a c' ],
        [ other => 'what only looks like white space', 'a b',
          "a\xe2\x80\x8bb" ],
        [ other => 'a byte that is no UTF-8', 'a b', "a\xa0b" ]);

    table('text/plain; charset=utf-16', $path,
        [ other => 'in UTF-16, by its bytes', ' a ', 'a' ]);
    table('text/html', $path,
        [ other => 'another text, by its bytes', '<p> a', '<p>  a' ]);
}

table('text/plain', $_,
      [ other => 'text is not listed', 'a b', 'a  b' ],
      [ same => 'text is not listed, its bytes', 'a  b', 'a  b' ])
    for '', qw(off form json multipart);

# with text, values of forms are text too
table($form, 'all',
    [ same => 'white space in values', 'a=x+y&b=1', "b=+1+&a=x%0d%0a$nbsp+y" ],
    [ other => 'white space in names', 'a+b=1', 'a++b=1' ],
    [ other => 'no white space', 'a=x+y', 'a=xy' ],
    [ other => 'letter case', 'a=x', 'a=X' ]);
table($json, 'all',
    [ other => 'white space in JSON', '["a b"]', '["a  b"]' ]);
parts(same => 'white space in values', [part(a => 'x y')],
      [part(a => " x \r\n y ")], path => 'all');
parts(other => 'white space in files', [part(f => 'x y', file => 'a')],
      [part(f => 'x  y', file => 'a')], path => 'all');


# --- which types -------------------------------------------------------------

my %bodies = (
    form => [ { type => $form, body => 'a=1&b=2' },
              { type => $form, body => 'b=2&a=1' } ],
    json => [ { type => $json, body => '{"a":1}' },
              { type => $json, body => '{ "a":1 }' } ],
    multipart => [ { multipart('xxx', @a) }, { multipart('yyy', @a) } ],
    text => [ { type => 'text/plain', body => 'a b' },
              { type => 'text/plain', body => 'a  b' } ],
);

for my $kind (sort keys %bodies) {
    my ($one, $two) = @{$bodies{$kind}};

    # Where nginx sends a request on before it is decided, the body has been
    # read and digested already, by the first location's settings: the last
    # one's count.

    for my $path ('', qw(off form json multipart text all tryall tryoff)) {
        my $meaning = $path eq '' ? $kind ne 'text'
                      : $path =~ /all$/ || $path eq $kind;

        ($meaning ? \&same : \&other)->("$kind at /$path",
                                        { %$one, path => $path },
                                        { %$two, path => $path });
        same("$kind at /$path, its very bytes", { %$one, path => $path },
             { %$one, path => $path });
    }
}

# The type itself: neither its charset nor its letter case nor white space.

for my $type ('application/json; charset=utf-8', 'application/json;charset=X',
              'Application/JSON', 'application/json ; CHARSET="utf-8"',
              'application/json;', 'application/json; charset=utf-8;')
{
    same("JSON as $type", { type => $json, body => '{"a":1}' },
         { type => $type, body => '{"a" : 1}' });
    same("JSON as $type, invalid", { type => $json, body => '{"a":1' },
         { type => $type, body => '{"a":1' });
}

for my $type ("$form; charset=UTF-8", uc $form) {
    same("a form as $type", { type => $form, body => 'a=1&b=2' },
         { type => $type, body => 'b=2&a=1' });
}

same('bytes of a type in another case', { type => 'image/png', body => 'x' },
     { type => 'Image/PNG', body => 'x' });

for (['application/json', 'application/problem+json'],
     ['application/json', 'text/plain'],
     ['application/json', 'application/json; v=2'],
     ['image/png; v=1', 'image/png; v=2'],
     ['application/json', ''],
     ['image/png', 'image/jpeg'],
     [$form, 'text/plain'],
     [$form, undef])
{
    my ($a, $b) = @$_;

    other("$a, " . ($b // 'no type'), { type => $a, body => '1' },
          { defined $b ? (type => $b) : (), body => '1' });
}

# an empty body of any type is of that type
other('an empty form and an empty text', { type => $form, body => '' },
      { type => 'text/plain', body => '' });

# Never the digest of one kind for the other: neither of them is the other's
# encoding, nor its bytes.
other('a form and the same form at off', { type => $form, body => 'a=1' },
      { type => $form, body => 'a=1', path => 'off' });


# --- Content-Encoding --------------------------------------------------------

for my $coding ('gzip', 'identity', '') {
    my @h = (headers => ["Content-Encoding: $coding"]);

    for my $kind (grep { $_ ne 'text' } sort keys %bodies) {
        my ($one, $two) = @{$bodies{$kind}};

        same("$kind, coded '$coding', its bytes", { %$one, @h },
             { %$one, @h });
        other("$kind, coded '$coding', by its bytes", { %$one, @h },
              { %$two, @h });
        other("$kind, coded '$coding' or not", { %$one, @h }, $one);
    }
}

other('another coding',
      { type => $json, body => '1', headers => ['Content-Encoding: gzip'] },
      { type => $json, body => '1', headers => ['Content-Encoding: br'] });


# --- idempotency_normalize_buffer --------------------------------------------

my %sized = (
    $form => sub { my $x = 'x' x ($_[0] - 6); ("a=1&b=$x", "b=$x&a=1") },
    $json => sub { my $x = 'x' x ($_[0] - 9); ("{\"a\":\"$x\" }",
                                               "{ \"a\":\"$x\"}") },
    'text/plain' => sub { my $x = 'x' x ($_[0] - 1); (" $x", "$x ") },
);

for my $type (sort keys %sized) {
    for my $size (100, 101) {
        my @b = $sized{$type}->($size);

        for my $chunked ([0, 0], [0, 1], [1, 0], [1, 1]) {
            my ($one, $two) = map {
                { type => $type, path => 'buffer', body => $b[$_],
                  chunked => $chunked->[$_] }
            } 0, 1;

            my $how = "$type, $size bytes, a buffer of 100, chunked "
                      . join ', ', @$chunked;

            ($size == 100 ? \&same : \&other)->($how, $one, $two);
            same("$how, the very bytes", $one, { %$two, body => $b[0] });
        }
    }
}

# the default is one megabyte
{
    my $x = 'x' x (1024 * 1024 - 7);

    for my $more ('', 'y') {
        my $how = length("a=1&b=y$x$more") . ' bytes by default';

        ($more eq '' ? \&same : \&other)
            ->($how, { type => $form, body => "a=1&b=y$x$more" },
               { type => $form, body => "b=y$x$more&a=1" });
    }

    same('more, with a larger buffer',
         { type => $form, path => 'most', body => "a=1&b=y${x}y" },
         { type => $form, path => 'most', body => "b=y${x}y&a=1" });
}


# --- how the body came and where it lies -------------------------------------

for my $path (grep { /^(?:stream|tiny|file|mirror|lua|most)$/ }
              sort keys %locations)
{
    for my $size (10, 2000, 70_000) {
        my $x = 'x' x $size;
        my @form = ("a=$x&b=1", "b=1&a=$x", "b=1&a=${x}x");
        my @json = ("{\"a\":\"$x\",\"b\":1}", "{\"b\":1,\"a\":\"$x\"}",
                    "{\"b\":1,\"a\":\"${x}x\"}");

        for ([$form, @form], [$json, @json]) {
            my ($type, @b) = @$_;
            my @m = map { { type => $type, path => $path, body => $_ } } @b;
            my $how = "$type, $size bytes at /$path";

            same($how, $m[0], $m[1]);
            same("$how, chunked, then not", { %{$m[0]}, chunked => 1 }, $m[1]);
            same("$how, then chunked", $m[0], { %{$m[1]}, chunked => 1 });
            other($how, $m[0], $m[2]);
            other("$how, chunked", { %{$m[0]}, chunked => 1 },
                  { %{$m[2]}, chunked => 1 });
        }
    }
}

SKIP: {
    skip 'bodies that Lua read before us: no such module', 1 unless $lua;
    ok($locations{lua}, 'bodies that Lua read before us are among them');
}

# mirror was there before us, as was told: it has its copy
like(last_request('copy'), qr/x{60000}/, 'a mirror has the body too');

# HTTP/2

{
    my $url = 'http://127.0.0.1:' . $n->port(1) . '/?id=h2';
    my $try = sub {
        my ($type, $body) = @_;
        return $n->curl('--http2-prior-knowledge', '-H', "Content-Type: $type",
                        '-H', "Idempotency-Key: h2-$type",
                        '--data-binary', $body, $url);
    };

    my @digests = map {
        my ($type, @b) = @$_;
        my @r = map { $try->($type, $_) } @b;
        is(join(', ', map { told($_) } @r),
           '200 NEW, 200 REPLAYED, 409 CONFLICT', "HTTP/2: $type");
        $r[0]->header('X-Digest')
    } [ $form, 'a=1&b=2', 'b=2&a=1', 'b=2&a=2' ],
      [ $json, '[1]', '[ 1.0 ]', '[2]' ],
      [ 'multipart/form-data; boundary=xxx',
        map { my %m = multipart('xxx', @$_); $m{body} }
            [@a], [reverse @a], [$a[0]] ];

    is($digests[0], $n->post('/?id=h2-1', key => 'h2-1', type => $form,
                             body => 'b=2&a=1')->header('X-Digest'),
       'HTTP/2: the digest is that of HTTP/1.1');
}


# --- idempotency_ignore_fields -----------------------------------------------

table($form, 'ignore',
    [ same => 'a field', 'a=1&csrf=x', 'a=1&csrf=y' ],
    [ same => 'a field that is not there', 'a=1&csrf=x', 'a=1' ],
    [ same => 'another one', 'a=1&ts=1', 'ts=2&a=1' ],
    [ same => 'both, several times', 'a=1&ts=1&csrf=1&ts=2', 'a=1' ],
    [ same => 'however it is spelled', 'a=1&c%73rf=x', 'a=1' ],
    [ same => 'a field without a name', 'a=1&=x', 'a=1' ],
    [ other => 'a field that is not listed', 'a=1&csrf=x', 'a=2&csrf=x' ],
    [ other => 'a longer name', 'a=1&csrf2=x', 'a=1&csrf2=y' ],
    [ other => 'a shorter name', 'a=1&csr=x', 'a=1&csr=y' ],
    [ other => 'another letter case', 'a=1&CSRF=x', 'a=1&CSRF=y' ],
    [ other => 'a JSON pointer is for JSON', '/top=1', '/top=2' ],
    [ other => '... however it is read', 'top=1', 'top=2' ],
    [ other => 'malformed, by its bytes', 'a=%&csrf=x', 'a=%&csrf=y' ]);

table($json, 'ignore',
    [ same => 'a member', '{"a":1,"csrf":"x"}', '{"a":1,"csrf":"y"}' ],
    [ same => 'a member that is not there', '{"a":1,"csrf":[{}]}', '{"a":1}' ],
    [ same => 'all members', '{"csrf":1,"ts":2,"csrf":3}', '{}' ],
    [ same => 'however it is spelled', '{"a":1,"\u0063srf":1}', '{"a":1}' ],
    [ same => 'a member without a name', '{"":1}', '{}' ],
    [ same => 'a pointer to a top-level member', '{"top":1}', '{"top":2}' ],
    [ same => 'a pointer', '{"meta":{"ts":1,"x":2}}', '{"meta":{"x":2}}' ],
    [ same => 'a pointer into an array',
      '{"items":[{"note":"x","n":1},{"note":"y"}]}',
      '{"items":[{"note":"z","n":1},{"note":"y"}]}' ],
    [ same => 'a pointer to an element', '{"list":[1,2,3,4]}',
      '{"list":[1,2,33,4]}' ],
    [ same => 'a pointer with escapes', '{"a/b":{"c~d":1,"x":1}}',
      '{"a/b":{"c~d":2,"x":1}}' ],
    [ same => '~01 is a tilde and a one', '{"~1":1}', '{"~1":2}' ],
    [ same => 'a name of digits in an object', '{"items":{"0":{"note":1}}}',
      '{"items":{"0":{"note":2}}}' ],
    [ other => 'a member that is not listed', '{"a":1,"csrf":1}',
      '{"a":2,"csrf":1}' ],
    [ other => 'a name below the top', '{"a":{"csrf":1}}',
      '{"a":{"csrf":2}}' ],
    [ other => 'a name in an array', '[{"csrf":1}]', '[{"csrf":2}]' ],
    [ other => 'another letter case', '{"CSRF":1}', '{"CSRF":2}' ],
    [ other => 'beside a pointer', '{"meta":{"ts":1,"x":2}}',
      '{"meta":{"ts":1,"x":3}}' ],
    [ other => 'above a pointer', '{"meta":{"ts":1}}', '{"meta":[1]}' ],
    [ other => 'below another one', '{"x":{"meta":{"ts":1}}}',
      '{"x":{"meta":{"ts":2}}}' ],
    [ other => 'another element', '{"items":[{"note":1},{"note":2}]}',
      '{"items":[{"note":1},{"note":3}]}' ],
    [ other => 'the element before', '{"list":[1,2,3]}', '{"list":[1,3,3]}' ],
    [ other => 'a pointer is no name', '{"/meta/ts":1}', '{"/meta/ts":2}' ],
    [ other => 'an escape is resolved once', '{"/":1}', '{"/":2}' ],
    [ other => 'invalid, by its bytes', '{"csrf":1', '{"csrf":2' ]);

parts(same => 'a field that is ignored', [@a, part(csrf => 'x')],
      [part(csrf => 'y', type => 'text/plain'), @a, part(ts => '1')],
      path => 'ignore');
parts(same => 'a file that is ignored', [@a, part(csrf => 'x', file => 'y')],
      [@a], path => 'ignore');
parts(other => 'a field that is not ignored', [@a, part(csrg => 'x')],
      [@a, part(csrg => 'y')], path => 'ignore');
parts(other => 'a pointer is no name', [@a, part('/top' => 'x')],
      [@a, part('/top' => 'y')], path => 'ignore');

# only where a body goes by its meaning

table('text/plain', $_, [ other => 'a text', 'csrf=x', 'csrf=y' ])
    for qw(ignore ignoreall);
table($form, 'ignoreoff',
    [ other => 'with off', 'a=1&csrf=x', 'a=1&csrf=y' ]);
table($json, 'ignoreall',
    [ other => 'a type that is not listed', '{"csrf":1}', '{"csrf":2}' ]);
table($form, 'ignoreall',
    [ same => 'a type that is listed', 'csrf=1', 'csrf=2' ]);
table($form, '',
    [ other => 'without it', 'a=1&csrf=x', 'a=1&csrf=y' ]);

done_testing();
