# docs/forms.md and docs/directives.md, "idempotency_guard": it serves a small
# script. What the script does is shown in a browser, by browser.t; HTTP/2 in
# connections.t.

use lib 't/lib';
use Test::Nginx::Idempotency 'no_plan';

# the file in the tree, less comment lines and white space that doesn't count
our $js = do {
    open my $f, '<', 'share/guard.js' or die "guard.js: $!";
    my $bare = join '', map { s/^\s+|\n//gr } grep { !m{^\s*//} } <$f>;

    $bare =~ s{ *([][{}()<>=+?:|&!,;*-]) *}{$1}g;
    $bare =~ s/;}/}/gr . "\n";
};

our ($etag) = `sh util/embed share/guard.js` =~ /ngx_string\("\\("\d+-\d+)\\""/;
$etag .= '"';

our $get = 'GET /idempotency-guard.js';
our $header = "Content-Type: text/javascript; charset=utf-8\nContent-Length: " . length($js)
              . "\nCache-Control: public, max-age=3600\nETag: $etag\n! Set-Cookie\n! Idempotent-Replayed";

run_tests();

__DATA__

=== TEST 1: the script, its type whatever types and charsets are around
--- user_files
>>> page.html
<html><head><title>a</title></head></html>
--- config
# as a whole site is protected: the script is none of what it protects
idempotency zone=z;
idempotency_missing_key reject;
default_type application/x-unknown;
charset koi8-r;

location = /idempotency-guard.js { idempotency_guard; }

location /guards/ {
    idempotency_guard;

    location /guards/below { proxy_pass http://backend; }
    location /guards/more { add_header X-More 1; idempotency_guard; }
    location /guards/off { idempotency off; idempotency_guard; }
    location /guards/gzip { gzip on; gzip_min_length 0; gzip_types text/javascript; idempotency_guard; }
    location /guards/expr { location ~ \.js$ { idempotency_guard; } }
    location /guards/denied { deny all; idempotency_guard; }
}

location = /named { try_files /nothing @guard; }
location @guard { idempotency_guard; }

location = /page.html {
    root html;
    types { text/html html; }
    sub_filter '</head>' '<script src="/idempotency-guard.js"></script></head>';
}
--- request eval: $::get
--- response_headers eval: $::header
--- response_body eval: $::js

=== TEST 2: it is a function of its own, in less than 5 KB of ASCII, and knows the field
--- request eval: $::get
--- response_body_like: \A(?=.*\bsubmission_token\b)(?=.{501,5119}\z)\(\(\)=>\{'use strict';[\n\x20-\x7e]*\z

=== TEST 3: nothing of it is from elsewhere, or what a strict Content-Security-Policy forbids
--- request eval: $::get
--- response_body_unlike eval
qr{https?://|//[a-z]|\bstyle\b|innerHTML|outerHTML|insertAdjacentHTML|\beval\b|\bFunction\b|document\.write
   |javascript:|setAttribute\(.on|set(?:Timeout|Interval)\(\s*['"]}x

=== TEST 4: HEAD has the same header
--- request: HEAD /idempotency-guard.js
--- response_headers eval: $::header
--- response_body:

=== TEST 5: who has it is told so
--- request eval: [($::get) x 4, 'HEAD /idempotency-guard.js']
--- more_headers eval: [map "If-None-Match: $_", $::etag, "W/$::etag", "\"x\", $::etag", '*', $::etag]
--- error_code: 304
--- response_headers eval: "ETag: $::etag\nCache-Control: public, max-age=3600"
--- response_body:

=== TEST 6: who has another one gets it
--- request eval: $::get
--- more_headers eval: [map "If-None-Match: $_", '"x"', $::etag =~ s/"$/0"/r, $::etag =~ tr/"//dr]
--- response_body eval: $::js

=== TEST 7: other methods are not allowed, and their bodies are read away
--- pipelined_requests eval
[map { ("$_ /guards/off/x\n" . 'a' x 5000, $::get) } qw(POST PUT PATCH DELETE OPTIONS)]
--- error_code eval: [(405, 200) x 5]

=== TEST 8: GET with a body is GET
--- pipelined_requests eval: ["$::get\n" . 'a' x 5000, $::get]
--- error_code eval: [200, 200]
--- response_body eval: [($::js) x 2]

=== TEST 9: POST is a request to protect, as any other there
--- request eval: "POST /idempotency-guard.js\na=1"
--- more_headers eval: ['', ('Idempotency-Key: post') x 2]
--- error_code: 400 405 405
--- idempotency_status: MISSING NEW REPLAYED

=== TEST 10: it may stand in any location
--- request eval
[map "GET $_", qw(/guards/ /guards/a.js /guards/more /guards/off /guards/gzip /guards/expr/a.js /named
                  /idempotency-guard.js?v=1)]
--- response_headers eval: [('') x 2, 'X-More: 1', ('') x 5]
--- response_body eval: $::js

=== TEST 11: access control comes first, and a location within is not the guard
--- request eval: ['GET /guards/denied', 'GET /guards/below']
--- error_code: 403 200
--- response_body_like: \A(?:.*403.*|exec=\d+ id=/guards/below\n)\z

=== TEST 12: gzip works, with a weak tag that is known again
--- request eval: [('GET /guards/gzip') x 2, $::get]
--- more_headers eval: [map "Accept-Encoding: gzip$_", '', "\nIf-None-Match: W/$::etag", '']
--- error_code: 200 304 200
--- response_headers eval: ["Content-Encoding: gzip\nETag: W/$::etag", '', "ETag: $::etag"]

=== TEST 13: sub_filter puts it into a page
--- request: GET /page.html
--- response_body_like: <script src="/idempotency-guard\.js"></script></head>
