# docs/directives.md, "idempotency_missing_key form": the content stands for the
# key only where a browser sends an HTML form by itself. A key counts always, but
# for one that the browser made for a navigation.

use lib 't/lib';
use Test::Nginx::Idempotency 'no_plan';

our $form = 'Content-Type: application/x-www-form-urlencoded';
our $chrome = 'Accept: text/html,application/xhtml+xml,application/xml;q=0.9,'
              . 'image/avif,image/webp,image/apng,*/*;q=0.8,'
              . 'application/signed-exchange;v=b3;q=0.7';
our $navigates = 'Sec-Fetch-Mode: navigate';
our $upload = "--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--b--";

our @forms = map { my $how = $_;
                   map "Content-Type: $_\n$how", 'text/plain',
                       'application/x-www-form-urlencoded;charset=UTF-8',
                       'application/x-www-form-urlencoded ; charset=UTF-8',
                       'APPLICATION/X-WWW-FORM-URLENCODED',
                       'multipart/form-data; boundary=b',
                       'Multipart/Form-Data;boundary=b',
                       'text/plain; charset=utf-8' } $navigates, $chrome;

our $ajax = 'X-Requested-With: XMLHttpRequest';
our @browsers = ($navigates, "$navigates\nAccept: */*",
                 "$navigates\nAccept: application/json\n$ajax",
                 'sec-fetch-mode: navigate', $chrome,
                 map "Accept: $_", 'text/html', 'TEXT/HTML;level=1;q=0.1',
                     'application/json, text/html;q=0.5',
                     "application/json\nAccept: text/html");

# what Java's HttpURLConnection sends by itself
our $java = "$form\nUser-Agent: Java/17.0.2\n"
            . 'Accept: text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2';
our @keyed = ($java, "$form\n$chrome", "Content-Type: application/json\n$chrome",
              map "$form\nSec-Fetch-Mode: $_\n$chrome", qw(cors no-cors same-origin Navigate), '');

# each of these twice, at a place of its own
sub twice { return [ map { ($_) x 2 } @_ ] }
sub at { my ($at, @all) = @_; return twice(map "POST /$at-$_\na=1", 0 .. $#all) }

# the same with two keys, as a browser makes them
sub keys_of { return [ map { my $h = $_; map "$h\nIdempotency-Key: $_", 1, 2 } @_ ] }

run_tests();

__DATA__

=== TEST 1: the content stands for the key of what a form can be sent as
--- config
location / {
    idempotency zone=z;
    idempotency_missing_key form;
    add_header X-Key "[$idempotency_key]" always;
    proxy_pass http://backend;
}
--- request eval: at('type', @::forms)
--- more_headers eval: twice(@::forms)
--- idempotency_status eval: 'NEW REPLAYED ' x @::forms
--- executions: 14

=== TEST 2: ... with and without fields, and for an upload
--- request eval: [("POST /none") x 2, ("POST /upload\n$::upload") x 2]
--- more_headers eval
[map "Content-Type: $_\n$::navigates", ('application/x-www-form-urlencoded') x 2,
     ('multipart/form-data; boundary=b') x 2]
--- idempotency_status: NEW REPLAYED NEW REPLAYED
--- executions: 2

=== TEST 3: it does not stand for the key of anything else
--- request
POST /other
a=1
--- more_headers eval
[map { my $how = $_;
       $how, map "Content-Type: $_\n$how", '', 'application/json', 'text/html',
             'text/plainer', 'text/plain/x', 'multipart/mixed; boundary=b',
             'multipart/form-data-x; boundary=b', 'application/octet-stream',
             'text' } $::navigates, $::chrome]
--- idempotency_status: -
--- executions: 20

=== TEST 4: a browser says that it navigates, or, without that, that it takes HTML
--- request eval: at('who', @::browsers)
--- more_headers eval: twice(map "$::form\n$_", @::browsers)
--- idempotency_status eval: 'NEW REPLAYED ' x @::browsers
--- executions: 9

=== TEST 5: what a script sends is as often meant as it is sent
--- request
POST /script
n=%2B1
--- more_headers eval
[map "$::form\n$_",
     map("Sec-Fetch-Mode: $_\n$::chrome", qw(cors no-cors same-origin websocket
                                             navigated Navigate), ''),
     map("Accept: $_", "text/html\n$::ajax", "text/html\nX-Requested-With: x",
         'text/html;q=0', 'text/*', '*/*', 'application/json',
         'text/htmlx, application/xhtml+xml', ''),
     '', ("Sec-Fetch-Mode: cors\nAccept: */*") x 3]
--- idempotency_status: -
--- executions: 19

=== TEST 6: another form is another one, and so is what came by another way
--- request eval: ["POST /two\na=1", "POST /two\na=2", "POST /two\na=1", "POST /two\na=1"]
--- more_headers eval: [map "$::form\n$_", ($::navigates) x 2, '', $::navigates]
--- idempotency_status: NEW NEW - REPLAYED
--- executions: 3

=== TEST 7: a key counts, whoever sends it, unless he says that he navigates
--- request eval
[map({ ("POST /key-$_\na=1") x 4 } 0 .. $#::keyed), ("POST /java?id=java\na=1") x 3]
--- more_headers eval
[map({ my $i = $_; map "$::keyed[$i]\nIdempotency-Key: $i-$_", 1, 1, 2, 1 } 0 .. $#::keyed),
 map "$::java\nIdempotency-Key: java-$_", 1, 2, 1]
--- response_headers eval
[map({ my $i = $_; map "X-Key: [$i-$_]", 1, 1, 2, 1 } 0 .. $#::keyed), map "X-Key: [java-$_]", 1, 2, 1]
--- idempotency_status eval: 'NEW REPLAYED NEW REPLAYED ' x @::keyed . 'NEW NEW REPLAYED'
--- executions eval: 2 * @::keyed + 2
--- no_error_log: passed over

=== TEST 8: the key of a navigation is passed over, well-formed or not, and it is logged
--- request eval
[at('own', 1)->@*, ("POST /own\n$::upload") x 2, ("POST /empty\na=1") x 6, ("POST /json\n1") x 2]
--- more_headers eval
[map("$::form\n$::navigates\nIdempotency-Key: $_", '"open1', '"open2'),
 keys_of("Content-Type: multipart/form-data; boundary=b\n$::navigates")->@*,
 map("$::form\n$::navigates\nIdempotency-Key: $_", ('', '""') x 2, ("two\nIdempotency-Key: lines") x 2),
 keys_of("Content-Type: application/json\n$::navigates")->@*]
--- response_headers: X-Key: []
--- idempotency_status: NEW REPLAYED NEW REPLAYED NEW REPLAYED REPLAYED REPLAYED REPLAYED REPLAYED - -
--- error_log eval: qr/\[info\] .*idempotency: passed over the key of a navigation/

=== TEST 9: ... with content standing for any key, too, and whatever idempotency_key_format says
--- config eval
map <<EOC, qw(content form)
location / {
    idempotency zone=z;
    idempotency_scope $_;
    idempotency_missing_key $_;
    idempotency_key_format uuid;
    proxy_pass http://backend;
}
EOC
--- request
POST /uuid
a=1
--- more_headers eval: keys_of("$::form\n$::navigates")
--- idempotency_status: NEW REPLAYED
--- executions: 1

=== TEST 10: beside them, the form's own token is the key, or its content
--- config
location / {
    idempotency zone=z;
    idempotency_missing_key form;
    idempotency_key $http_idempotency_key $idempotency_field_token;
    idempotency_ignore_fields token;
    add_header X-Key "[$idempotency_key]" always;
    proxy_pass http://backend;
}
--- request eval
["POST /field\ntoken=t1&a=1", "POST /field\ntoken=t1&a=1",
 "POST /field\ntoken=t2&a=1", "POST /field\ntoken=t1&a=1",
 "POST /field\ntoken=t1&a=2", "POST /field\na=1", "POST /field\na=1"]
--- more_headers eval: [map "$::form\n$::navigates\nIdempotency-Key: k$_", 1 .. 7]
--- error_code: 200 200 200 200 409 200 200
--- response_headers eval: [map "X-Key: [$_]", qw(t1 t1 t2 t1 t1), '', '']
--- idempotency_status: NEW REPLAYED NEW REPLAYED CONFLICT NEW REPLAYED
--- executions: 3

=== TEST 11: only where a key is that header and nothing else
--- config
location / {
    idempotency zone=z;
    idempotency_missing_key form;
    idempotency_key $cookie_key "$http_idempotency_key$arg_more" ${http_Idempotency_Key};
    proxy_pass http://backend;
}

location /braces {
    idempotency zone=z;
    idempotency_missing_key form;
    idempotency_key ${http_Idempotency_Key};
    proxy_pass http://backend;
}
--- request eval
[("POST /cookie\na=1") x 3, ("POST /part?more=x\na=1") x 3, ("POST /braces\na=1") x 2]
--- more_headers eval
[map "$::form\n$::navigates\n$_",
     map({ "Cookie: key=$_\nIdempotency-Key: $_" } 1, 2, 1),
     map({ "Idempotency-Key: $_" } 1, 2, 1), keys_of('')->@*]
--- idempotency_status: NEW NEW REPLAYED NEW NEW REPLAYED NEW REPLAYED
--- executions: 5

=== TEST 12: where the content stands for nothing, it is a key
--- config eval
map <<EOC, qw(pass reject)
location / {
    idempotency zone=z;
    idempotency_missing_key $_;
    idempotency_scope $_;
    proxy_pass http://backend;
}
EOC
--- request
POST /not-form
a=1
--- more_headers eval: keys_of("$::form\n$::navigates")
--- idempotency_status: NEW
--- executions: 2

=== TEST 13: a body is read only where the key or the content counts
--- config
location / {
    idempotency zone=z;
    idempotency_missing_key form;
    add_header X-Read "[$request_body]" always;
    empty_gif;

    location /field {
        idempotency_key $http_idempotency_key $idempotency_field_token;
        empty_gif;
    }
}
--- request eval: [("POST /\na=12345678") x 6, "POST /field\n{\"a\":1234}"]
--- more_headers eval
["$::form\nSec-Fetch-Mode: cors", $::form,
 map("Content-Type: application/json\n$_", $::navigates, $::chrome),
 "$::form\n$::navigates", "$::form\nSec-Fetch-Mode: cors\nIdempotency-Key: read",
 "Content-Type: application/json\nSec-Fetch-Mode: cors"]
--- error_code: 405
--- response_headers eval: [map "X-Read: [$_]", ('') x 4, ('a=12345678') x 2, '{"a":1234}']
