# docs/guarantees.md, "What is in a replay": the recorded response, byte by byte,
# which is what a block compares. What nginx's filters, versions of HTTP and
# clients make of it is tested in filters.t.

use lib 't/lib';
use Test::Nginx::Idempotency 'no_plan';

use Digest::MD5 qw(md5_hex);

sub thrice { return [map { my $r = "POST $_"; ($r) x 3 } @_] }
sub escape { return join '&', map 'h=' . s/([^\w])/sprintf '%%%02X', ord $1/ger, @_ }

our @statuses = (202, 206, 226, 299, 301, 304, 307, 308, 400, 402, 403, 404, 409,
                 410, 418, 422, 429, 451, 499, 500, 501, 502, 503, 504, 507, 599);
our @places = ('/things/1', 'http://localhost/things/1', 'things/1',
               'http://inner/things/1', '//other/x');

# lines that repeat, that nginx has lists for, and names in any spelling
our @lines = ('Set-Cookie: a=1; Path=/; HttpOnly', 'X-First: 1',
    'Set-Cookie: b=2; Path=/', 'x-ODD_name.1: odd', 'X-Empty:',
    'Cache-Control: no-store', 'Link: </a>; rel="next"', 'Cache-Control: private',
    'Link: </b>; rel="prev"', 'Vary: Accept', 'Vary: Cookie', 'ETag: "strong"',
    'X-Twice: one', 'X-Twice: two', 'Last-Modified: Mon, 28 Sep 1970 06:00:00 GMT',
    'Expires: Mon, 28 Sep 2030 06:00:00 GMT', 'Content-Language: de',
    'Content-Encoding: identity', 'Accept-Ranges: bytes', 'Retry-After: 3',
    'Set-Cookie: a=1; Path=/; HttpOnly', "X-Bytes: \xc3\xa4 \"q\" \\ ;=",
    'Refresh: 5; url=http://localhost/r', 'X-Long: ' . 'l' x 3000, 'Allow: POST',
    'Content-Disposition: attachment; filename="x y.pdf"');
our @hop = ('Connection: X-Hop', 'Keep-Alive: timeout=5', 'Upgrade: h2c',
            'TE: trailers', 'Trailer: X-T', 'Proxy-Connection: close',
            'Proxy-Authenticate: Basic');

our $lua = Idempotency::has_module('ngx_http_lua_module');
our $ndk = Idempotency::has_module('ndk_http_module');

# bodies: how many bytes, how they come, and where
our @te = qw(cl chunked close);
our @bodies = (map({ my $n = $_; map [$n, $_, ''], @te } 0, 1, 2, 4095, 4096, 4097,
                   65535, 65536, 65537, 1048576),
               map({ my $at = $_; map { my $n = $_; map [$n, $_, $at], @te }
                     0, 1, 4096, 70001 } qw(unbuffered pieces gzip)),
               [1048575, 'cl', ''], [1024, 'cl', 'small'], [1024, 'chunked', 'small'],
               [5000, 'cl&bdelay=20', ''], [5000, 'chunked&bdelay=20', '']);
our @large = ([1048577, 'cl', ''], [1048577, 'chunked', ''], [3000000, 'close', ''],
              [1025, 'cl', 'small'], [1025, 'chunked', 'small'],
              [100000, 'close', 'small']);

sub sized { return map "/$_->[2]?size=$_->[0]&te=$_->[1]&id=$_->[0]$_->[1]$_->[2]", @_ }
sub sums { return map md5_hex(Idempotency::pattern($_->[0], 1)), @_ }

run_tests();

__DATA__

=== TEST 1: the status passes, and its own reason, and so does a replay
--- config
proxy_http_version 1.1;
proxy_set_header Connection "";

# each request's URI is its key
idempotency zone=z;
idempotency_key $request_uri;
idempotency_key_max_length 5000;
idempotency_keep any;
idempotency_replay_cookies always;

location / { proxy_pass http://backend; }
location /redirect { proxy_redirect http://inner/ /outer/; proxy_pass http://backend; }
location /passed {
    proxy_pass_header Date;
    proxy_pass_header Server;
    proxy_pass http://backend;
}
location /hide { idempotency_hide_header X-Secret x-other; proxy_pass http://backend; }
location /hide/own {
    idempotency_hide_header last-modified Content-Type;
    proxy_pass http://backend;
}
location /methods { idempotency_methods POST HEAD GET; proxy_pass http://backend; }
--- request eval
thrice(map "/s?status=$_&reason=Own%20Words&h=ETag:%20%22e%22&h=Location:%20/l",
           @::statuses)
--- error_code eval: [map { ($_) x 3 } @::statuses]
--- raw_response_headers_like: ^HTTP/1.1 \d+ .*ETag: "e"
--- idempotency_status eval: 'NEW REPLAYED REPLAYED ' x @::statuses
--- executions: 26

=== TEST 2: a reason of its own, none, and no content
--- request eval
thrice('/r?status=201&reason=Made%20It', '/r?status=200&reason=', '/r?status=204')
--- error_code: 201 201 201 200 200 200 204 204 204
--- raw_response_headers_like eval
[('^HTTP/1.1 201 Made It\r\n') x 3, ('^HTTP/1.1 200 ?\r\n') x 3,
 ('^HTTP/1.1 204 (?!.*Content-Length)') x 3]
--- idempotency_status: NEW REPLAYED REPLAYED NEW REPLAYED REPLAYED NEW REPLAYED REPLAYED

=== TEST 3: where a redirect leads to
--- request eval
thrice(map { my $at = $_; map "/$at?status=303&h=Location:%20$_", @::places }
       qw(x redirect))
--- error_code: 303
--- raw_response_headers_like: Location:
--- idempotency_status eval: 'NEW REPLAYED REPLAYED ' x 10

=== TEST 4: all header lines, in their order, as often as they came
--- request eval: thrice('/lines?' . escape(@::lines))
--- response_headers
X-Twice: one, two
Set-Cookie: a=1; Path=/; HttpOnly, b=2; Path=/, a=1; Path=/; HttpOnly
ETag: "strong"
--- raw_response_headers_like: x-ODD_name.1: odd
--- idempotency_status: NEW REPLAYED REPLAYED
--- executions: 1

=== TEST 5: two challenges
--- request eval
thrice('/401?status=401&' . escape('WWW-Authenticate: Basic realm="a"',
                                   'WWW-Authenticate: Bearer'))
--- error_code: 401
--- response_headers: WWW-Authenticate: Basic realm="a", Bearer
--- idempotency_status: NEW REPLAYED REPLAYED

=== TEST 6: the upstream's date and server, where they are passed on, and only these
--- request eval
thrice('/passed?' . escape('Date: Mon, 28 Sep 1970 06:00:00 GMT', 'Server: theirs/1'))
--- response_headers
Date: Mon, 28 Sep 1970 06:00:00 GMT
Server: theirs/1
--- idempotency_status: NEW REPLAYED REPLAYED

=== TEST 7: a content type, or none
--- request eval
thrice('/type?noct=1', map '/type?ct=' . escape($_) =~ s/^h=//r,
       'text/html; charset=windows-1251', 'application/json',
       'text/plain;charset="UTF-8"; x=y', 'odd', 'multipart/mixed; boundary=b',
       'TEXT/HTML')
--- idempotency_status eval: 'NEW REPLAYED REPLAYED ' x 7

=== TEST 8: Connection, Keep-Alive and the like belong to one hop
--- request eval: thrice('/hop?' . escape(@::hop, 'X-Kept: yes'))
--- response_headers eval
[map "X-Kept: yes\nConnection: close" . $_, '',
     (join "\n! ", '', qw(Keep-Alive Upgrade TE Trailer Proxy-Connection
                          Proxy-Authenticate)) x 2]
--- idempotency_status: NEW REPLAYED REPLAYED
--- varies: Keep-Alive Upgrade TE Trailer Proxy-Connection Proxy-Authenticate

=== TEST 9: what is hidden passes, but is not replayed
--- request eval
thrice('/hide?' . escape('X-Secret: 1', 'X-Open: a', 'X-OTHER: b', 'x-secret: 2'))
--- response_headers eval
["X-Secret: 1, 2\nX-Other: b\nX-Open: a", ("X-Open: a\n! X-Secret\n! x-secret\n! X-OTHER") x 2]
--- idempotency_status: NEW REPLAYED REPLAYED
--- varies: X-Secret X-Other

=== TEST 10: ... nor is a line that nginx keeps in a place of its own
--- request eval
thrice('/hide/own?' . escape('Last-Modified: Mon, 28 Sep 1970 06:00:00 GMT',
                             'Content-Type: text/x', 'X-Open: a'))
--- response_headers eval
["X-Open: a\nLast-Modified: Mon, 28 Sep 1970 06:00:00 GMT\nContent-Type: text/x",
 ("X-Open: a\n! Last-Modified\n! Content-Type") x 2]
--- idempotency_status: NEW REPLAYED REPLAYED
--- varies: Last-Modified Content-Type

=== TEST 11: HEAD and GET, where they are listed; one's key does not do for the other
--- request eval
[(map "$_?size=100", ('HEAD /methods/h') x 3, ('GET /methods/g') x 3, 'HEAD /methods/g'),
 # it has no body that could be too large
 ('HEAD /methods/l?size=2000000') x 2]
--- error_code: 200 200 200 200 200 200 409 200 200
--- response_headers_like eval: [('Content-Length: 100') x 6, '', ('Content-Length: 2000000') x 2]
--- idempotency_status: NEW REPLAYED REPLAYED NEW REPLAYED REPLAYED CONFLICT NEW REPLAYED

=== TEST 12: nothing is marked that is no replay
--- request eval: ['GET /get', 'GET /get', 'POST /mark', 'POST /mark']
--- response_headers eval: [('! Idempotent-Replayed') x 3, 'Idempotent-Replayed: true']
--- idempotency_status: - - NEW REPLAYED

=== TEST 13: bodies of any size and length, all bytes, as one piece or many
--- http_config
    idempotency_zone zone=big:64m;
--- config
proxy_http_version 1.1;
proxy_set_header Connection "";
idempotency zone=big;
idempotency_key $request_uri;

location / { proxy_pass http://backend; }
location /unbuffered { proxy_buffering off; proxy_pass http://backend; }
location /pieces {
    proxy_buffer_size 2k;
    proxy_buffers 4 2k;
    proxy_busy_buffers_size 2k;
    proxy_pass http://backend;
}
location /gzip { gzip on; gzip_types *; gzip_proxied any; proxy_pass http://backend; }
location /small { idempotency_max_response 1k; proxy_pass http://backend; }
--- request eval: thrice(sized(@::bodies))
--- response_body_filters: md5_hex
--- response_body eval: [map { ($_) x 3 } sums(@::bodies)]
--- idempotency_status eval: 'NEW REPLAYED REPLAYED ' x @::bodies

=== TEST 14: a response that is too large is passed, and its repeats are told its status
--- request eval: thrice(map "$_&status=201", sized(@::large))
--- error_code eval: [(201, 409, 409) x @::large]
--- response_body_filters eval: sub { length $_[0] > 1000 ? md5_hex($_[0]) : $_[0] }
--- response_body_like eval: [map { ($_, ('\b201\b') x 2) } sums(@::large)]
--- idempotency_status eval: 'NEW NOT_KEPT NOT_KEPT ' x @::large
--- executions: 6

=== TEST 15: nor is any of these replayed that only a handler of nginx can set
--- skip_eval: 1: !$::lua || !$::ndk
--- main_config eval: join '', map "load_module $_;\n", $::ndk, $::lua
--- config
idempotency zone=z;
idempotency_key $request_uri;
location / {
    content_by_lua_block {
        for name, value in pairs(ngx.req.get_uri_args()) do ngx.header[name] = value end
        ngx.print("body")
    }
}
--- request eval
thrice('/lua?X-Kept=yes&Keep-Alive=5&Connection=X&Proxy-Authorization=a&Idempotent-Replayed=no')
--- raw_response_headers_like eval
['Keep-Alive: 5\r', ('\A(?!.*(?:Keep-Alive:|Connection: X|Proxy-A|Replayed: no)).*X-Kept: yes\r') x 2]
--- idempotency_status: NEW REPLAYED REPLAYED
--- varies: Keep-Alive Proxy-Authorization Idempotent-Replayed

=== TEST 16: a replay is marked by another name, or by none, and by one line
--- config
idempotency zone=z;
idempotency_replay_header X-Replayed;
add_header X-Status $idempotency_status always;

location / { proxy_pass http://backend; }
location /off { idempotency_replay_header off; proxy_pass http://backend; }
location /default { idempotency_replay_header Idempotent-Replayed; proxy_pass http://backend; }
--- request eval
[map { ($_) x 2 } 'POST /mark', map({ ("POST /$_?h=X-Replayed:%20a&h=x-replayed:%20b&h=Idempotent-Replayed:%20c") }
                                      'mark/own', 'off', 'default')]
--- more_headers eval: [map { ("Idempotency-Key: mark-$_") x 2 } 1 .. 4]
--- raw_response_headers_like eval
['X-Status: NEW', 'X-Replayed: true(?s:.*)X-Status: REPLAYED',
 'X-Replayed: a\r\nx-replayed: b\r\nIdempotent-Replayed: c\r\n(?s:.*)X-Status: NEW',
 'Idempotent-Replayed: c\r\n(?s:.*)X-Replayed: true\r\n(?s:.*)X-Status: REPLAYED',
 'X-Replayed: a\r\nx-replayed: b\r\nIdempotent-Replayed: c\r\n(?s:.*)X-Status: NEW',
 'X-Replayed: a\r\nx-replayed: b\r\nIdempotent-Replayed: c\r\n(?s:.*)X-Status: REPLAYED',
 'X-Replayed: a\r\nx-replayed: b\r\nIdempotent-Replayed: c\r\n(?s:.*)X-Status: NEW',
 'X-Replayed: a\r\nx-replayed: b\r\n(?s:.*)Idempotent-Replayed: true\r\n(?s:.*)X-Status: REPLAYED']
--- raw_response_headers_unlike eval
['Replayed', 'Idempotent-Replayed', 'true', '(?i)x-replayed: [ab]', 'true', 'true', 'true', 'Replayed: c']
--- executions: 4

=== TEST 17: a time before 1970 is a time
--- config
location / { idempotency zone=z; proxy_pass http://backend; }
--- request: POST /?h=Last-Modified:%20Wed,%2031%20Dec%201969%2023:00:00%20GMT
--- more_headers eval: [('Idempotency-Key: 1969') x 2]
--- response_headers: Last-Modified: Wed, 31 Dec 1969 23:00:00 GMT
--- idempotency_status: NEW REPLAYED
