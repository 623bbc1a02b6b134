# SPEC, idempotency_missing_key form: the content stands for the key only where a
# browser sends an HTML form by itself, and its own keys are none.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;


my $n = nginx(files => { 'html/file' => "a file\n" }, server => <<'EOC');
    idempotency zone=z;
    idempotency_missing_key form;

    add_header X-Status $idempotency_status always;
    add_header X-Key "[$idempotency_key]" always;

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }

    location /field {
        idempotency_key $http_idempotency_key $idempotency_field_token;
        idempotency_ignore_fields token;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /mixed {
        idempotency_key $cookie_key "$http_idempotency_key$arg_more";
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /uuid {
        idempotency_key_format uuid;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /reject {
        idempotency_missing_key reject;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /content {
        idempotency_missing_key content;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    # these need no body to answer
    location /file { root $TEST_NGINX_ROOT/html; }
    location /file/field {
        idempotency_key $http_idempotency_key $idempotency_field_token;
        root $TEST_NGINX_ROOT/html;
    }
EOC

my $id = 'case0';

my $form = 'application/x-www-form-urlencoded';
my $multipart = 'multipart/form-data; boundary=b';
my $chrome = 'text/html,application/xhtml+xml,application/xml;q=0.9,'
             . 'image/avif,image/webp,image/apng,*/*;q=0.8,'
             . 'application/signed-exchange;v=b3;q=0.7';
my $navigates = 'Sec-Fetch-Mode: navigate';

my %body = ($multipart => "--b\r\nContent-Disposition: form-data; name=\"a\"\r\n"
                          . "\r\n1\r\n--b--\r\n");

sub told { return "$_[0]{status} " . ($_[0]->header('X-Status') // '-') }

# The same request twice: what they were told, and how often it was executed.

sub twice {
    my ($path, $type, $headers, %o) = @_;

    $id++;

    my $body = delete $o{body} // $body{$type // ''} // 'a=1';

    return join(', ', map {
               told($n->post("$path?id=$id" . ($o{args} // ''), %o,
                             type => $type, body => $body,
                             headers => ref $headers eq 'CODE' ? $headers->($_)
                                                               : $headers))
           } 1, 2) . ', executed ' . executions($id);
}

my $once = '200 NEW, 200 REPLAYED, executed 1';
my $passed = '200 -, 200 -, executed 2';


# --- which content types -----------------------------------------------------

for my $how ([ $navigates ], [ "Accept: $chrome" ]) {
    for ([ $form, $once ],
         [ "$form;charset=UTF-8", $once ],
         [ "$form ; charset=UTF-8", $once ],
         [ uc $form, $once ],
         [ $multipart, $once ],
         [ 'Multipart/Form-Data;boundary=b', $once ],
         [ 'text/plain', $once ],
         [ 'text/plain; charset=utf-8', $once ],
         [ 'application/json', $passed ],
         [ 'text/html', $passed ],
         [ 'text/plainer', $passed ],
         [ 'text/plain/x', $passed ],
         [ 'multipart/mixed; boundary=b', $passed ],
         [ 'multipart/form-data-x; boundary=b', $passed ],
         [ 'application/octet-stream', $passed ],
         [ 'text', $passed ],
         [ '', $passed ],
         [ undef, $passed ])
    {
        my ($type, $expected) = @$_;

        is(twice('/x', $type, $how), $expected,
           "$how->[0], " . ($type // 'no type'));
    }
}

is(twice('/x', $form, [ $navigates ], body => ''), $once, 'a form without fields');


# --- who sends it ------------------------------------------------------------

my $ajax = 'X-Requested-With: XMLHttpRequest';

for ([ [ $navigates ], $once ],
     [ [ $navigates, 'Accept: */*' ], $once ],
     [ [ $navigates, 'Accept: application/json', $ajax ], $once ],
     [ [ 'sec-fetch-mode: navigate' ], $once ],
     (map { [ [ "Sec-Fetch-Mode: $_", "Accept: $chrome" ], $passed ] }
          qw(cors no-cors same-origin websocket navigated Navigate), ''),

     # without it
     [ [ "Accept: $chrome" ], $once ],
     [ [ 'Accept: text/html' ], $once ],
     [ [ 'Accept: TEXT/HTML;level=1;q=0.1' ], $once ],
     [ [ 'Accept: application/json, text/html;q=0.5' ], $once ],
     [ [ 'Accept: application/json', 'Accept: text/html' ], $once ],
     [ [ 'Accept: text/html', $ajax ], $passed ],
     [ [ 'Accept: text/html', 'X-Requested-With: x' ], $passed ],
     [ [ 'Accept: text/html;q=0' ], $passed ],
     [ [ 'Accept: text/*' ], $passed ],
     [ [ 'Accept: */*' ], $passed ],
     [ [ 'Accept: application/json' ], $passed ],
     [ [ 'Accept: text/htmlx, application/xhtml+xml' ], $passed ],
     [ [ 'Accept:' ], $passed ],
     [ [], $passed ])
{
    my ($headers, $expected) = @$_;

    is(twice('/x', $form, $headers), $expected,
       join(', ', @$headers) || 'nothing said');
}

# What a script sends three times is meant three times.
is(join(', ', map { told($n->post('/x?id=plus', type => $form, body => 'n=%2B1',
                                  headers => [ 'Sec-Fetch-Mode: cors',
                                               'Accept: */*' ])) } 1 .. 3)
   . ', executed ' . executions('plus'), '200 -, 200 -, 200 -, executed 3',
   'a +1 sent three times by a script');

# Another form, and one that came by another way, is another one.
{
    my @o = (type => $form, headers => [ $navigates ]);

    is(told($n->post('/x?id=two', @o, body => 'a=1')), '200 NEW', 'a form');
    is(told($n->post('/x?id=two', @o, body => 'a=2')), '200 NEW', 'another');
    is(told($n->post('/x?id=two', type => $form, body => 'a=1')), '200 -',
       "a script's");
    is(told($n->post('/x?id=two', @o, body => 'a=1')), '200 REPLAYED',
       'the first one again');
}


# --- keys --------------------------------------------------------------------

is(twice('/x', $form, [ 'Sec-Fetch-Mode: cors' ], key => 'script'), $once,
   'the key of a script counts');
is(twice('/x', 'application/json', [ $navigates ], key => 'json'), $once,
   '... of what no form sends, too');
is(twice('/x', $form, sub { [ 'Sec-Fetch-Mode: cors',
                              "Idempotency-Key: \"$id-$_[0]\"" ] }),
   '200 NEW, 200 NEW, executed 2', '... and another key is another one');

# A browser makes a new one for each POST.
my $browsers = sub { [ $navigates, "Idempotency-Key: \"$id-$_[0]\"" ] };

is(twice('/x', $form, $browsers), $once, "a browser's own keys are none");
is(twice('/x', $form, sub { [ "Accept: $chrome", "Idempotency-Key: $id-$_[0]" ] }),
   $once, '... nor those of an older one');
is(twice('/x', $multipart, $browsers), $once, '... nor with an upload');
is(twice('/uuid', $form, $browsers), $once, '... well-formed or not');
is(twice('/x', $form, sub { [ $navigates, 'Idempotency-Key: "open' . $_[0] ] }),
   $once, '... or malformed');
is($n->post('/x?id=own', type => $form, body => 'a=own', key => 'own',
            headers => [ $navigates ])->header('X-Key'), '[]',
   '... and it is not in $idempotency_key');
is(twice('/x', $form, [ $navigates, "Idempotency-Key: $_" ]), $once,
   'an empty one is none') for '', '""';

is(twice('/field', $form, $browsers, body => 'token=t&a=1'), $once,
   "beside it, the form's own token is the key");
is(twice('/field', $form, $browsers), $once, '... or its content');
{
    my @o = (type => $form, key => 'k1',
             headers => [ $navigates ]);
    is(told($n->post('/field?id=tt', @o, body => 'token=t1&a=1')), '200 NEW',
       'a token');
    is(told($n->post('/field?id=tt', @o, body => 'token=t2&a=1')), '200 NEW',
       '... and another: another one');
    my $r = $n->post('/field?id=tt', @o, body => 'token=t1&a=1');
    is(told($r) . ' ' . $r->header('X-Key'), '200 REPLAYED [t1]',
       '... the first again');
    is(told($n->post('/field?id=tt', @o, body => 'token=t1&a=2')),
       '409 CONFLICT', '... bound to its content');
}

# It is passed over by its value, wherever that comes from.
is(twice('/mixed', $form, sub { [ $navigates, "Cookie: key=$id",
                                  "Idempotency-Key: $id-$_[0]" ] }),
   $once, 'a key from elsewhere counts');
is(twice('/mixed', $form, sub { [ $navigates, "Cookie: key=$id-$_[0]",
                                  "Idempotency-Key: $id-$_[0]" ] }),
   '200 NEW, 200 NEW, executed 2',
   '... but not if it is the same: then the cookies tell two visitors apart');
is(twice('/mixed', $form, sub { [ $navigates, "Idempotency-Key: $id-$_[0]" ] },
         args => '&more=x'),
   '200 NEW, 200 NEW, executed 2', 'one that it is only a part of counts');

# Only with "form".
is(twice('/content', $form, $browsers), '200 NEW, 200 NEW, executed 2',
   'with content, it is a key');
is(twice('/reject', $form, $browsers), '200 NEW, 200 NEW, executed 2',
   'with reject, it is a key');


# --- what is not read --------------------------------------------------------

# The static handler answers a POST by 405 before it has a body, unless somebody
# wants it first.

sub half {
    my ($path, $type, @headers) = @_;

    my $c = $n->connect;
    $c->{method} = 'POST';
    $c->send("POST $path HTTP/1.1\r\nHost: localhost\r\nContent-Type: $type\r\n"
             . join('', map { "$_\r\n" } @headers)
             . "Content-Length: 10\r\n\r\n"
             . ($type =~ /json/ ? '{"a":' : 'a=123'));

    return $c;
}

for ([ '/file', $form, 'Sec-Fetch-Mode: cors' ], [ '/file', $form ],
     [ '/file', 'application/json', $navigates ],
     [ '/file', 'application/json', "Accept: $chrome" ])
{
    is(half(@$_)->response->{status}, 405, "not read: @$_");
}

for ([ '/file', $form, $navigates ],
     [ '/file', $form, 'Sec-Fetch-Mode: cors', "Idempotency-Key: $id-half" ],
     [ '/file/field', 'application/json', 'Sec-Fetch-Mode: cors' ])
{
    my $c = half(@$_);
    ok(!$c->readable(0.3), "read: @$_");
    $c->send($_->[1] =~ /json/ ? '1234}' : '45678');
    like($c->response->{status}, qr/^40[45]$/, '... whole');
}

done_testing();
