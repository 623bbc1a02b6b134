# docs/directives.md, "idempotency_quota": one client can't fill the zone for
# all. That a place comes back with its window is in window.t.

use lib 't/lib';
use Test::Nginx::Idempotency 'no_plan';

# requests from an address, with each of these keys
sub from { my $from = shift; return map "X-From: $from\nIdempotency-Key: $from-$_", @_ }

run_tests();

__DATA__

=== TEST 1: so many tokens, and no more; repeats are answered, and conflicts told
--- http_config
idempotency_zone zone=y:1m;
set_real_ip_from 127.0.0.1;
real_ip_header X-From;
--- config
idempotency zone=z;
idempotency_quota 3;

location / { proxy_pass http://backend; }
location /five { idempotency_quota 5; proxy_pass http://backend; }
location /off { idempotency_quota off; proxy_pass http://backend; }
location /y { idempotency zone=y; proxy_pass http://backend; }
location /string { idempotency_quota 2 $http_x_user; proxy_pass http://backend; }
location /parts { idempotency_quota 2 "$http_x_user/$http_x_team"; proxy_pass http://backend; }
location /all { idempotency_quota 2 all; proxy_pass http://backend; }
location /address { idempotency_quota 3 $remote_addr; proxy_pass http://backend; }
location /status { idempotency_status limited=503; proxy_pass http://backend; }
location /dry { idempotency_dry_run on; proxy_pass http://backend; }
location /content { idempotency_missing_key content; proxy_pass http://backend; }
location /reject { idempotency_in_progress reject; proxy_pass http://backend; }
--- request eval: [("POST /\nb") x 7, "POST /\nc"]
--- more_headers eval: [from('1.1.1.1', 1 .. 4, 1 .. 3, 1)]
--- response_headers_like eval: [('') x 3, 'Retry-After: 86[34]\d\d', ('') x 4]
--- response_body_like eval: [('exec') x 3, '"[^"]*limited"', ('exec') x 3, '"[^"]*conflict"']
--- idempotency_status: NEW NEW NEW LIMITED REPLAYED REPLAYED REPLAYED CONFLICT
--- executions: 3

=== TEST 2: they count by zone and value, wherever they are, and for nobody else
--- request eval: [map "POST /$_", qw(x x x five five five address status content dry y off off x)]
--- more_headers eval
[from('1.1.2.1', 1 .. 8), 'X-From: 1.1.2.1', from('1.1.2.1', 9 .. 12), from('1.1.2.2', 1)]
--- error_code: 200 200 200 200 200 429 429 503 429 200 200 200 200 200
--- idempotency_status eval: 'NEW ' x 5 . 'LIMITED ' x 4 . 'LIMITED_DRY_RUN ' . 'NEW ' x 4
--- executions: 10

=== TEST 3: tokens of content count as any
--- request eval: [map "POST /content\n$_", 1 .. 4, 3]
--- more_headers: X-From: 1.1.3.1
--- idempotency_status: NEW NEW NEW LIMITED REPLAYED

=== TEST 4: an IPv6 network of 64 bits is one client
--- request: POST /
--- more_headers eval
[map from($_, 1), '2001:db8::1', '2001:db8::2', '2001:db8::3', '2001:db8::ffff:ffff:ffff:ffff', '2001:db8:0:1::1']
--- idempotency_status: NEW NEW NEW LIMITED NEW

=== TEST 5: an IPv4 address in IPv6 is that address
--- request: POST /
--- more_headers eval
[from('::ffff:3.3.3.3', 1, 2), from('3.3.3.3', 1, 2), from('::ffff:3.3.3.4', 1)]
--- idempotency_status: NEW NEW NEW LIMITED NEW

=== TEST 6: a string of one's own, from anywhere; who has none is not counted
--- request: POST /string
--- more_headers eval
my @h = (from('4.4.4.4', 1, 2), from('4.4.4.5', 3), from('4.4.4.4', 4 .. 7));
[map({ "$_\nX-User: a" } @h[0 .. 2]), "$h[3]\nX-User: b", @h[4 .. 6]]
--- idempotency_status: NEW NEW LIMITED NEW NEW NEW NEW

=== TEST 7: ... a string in parts that are all empty is none; a constant is one for all
--- request eval: [("POST /parts") x 7, ("POST /all") x 3]
--- more_headers eval
[from('4.4.5.1', 1 .. 3), map({ (from('4.4.5.1', $_))[0] . "\nX-Team: a" } 4 .. 6), from('4.4.5.1', 7),
 map { from("4.4.5.$_", 8) } 2 .. 4]
--- idempotency_status: NEW NEW NEW NEW NEW LIMITED NEW NEW NEW LIMITED

=== TEST 8: what was released does not count, whatever the reason
--- request eval: [map "POST /released?$_", ('status=429') x 5, ('h=X-Accel-Idempotency:%20release') x 5]
--- more_headers eval: [from('5.5.5.5', 1 .. 10)]
--- error_code: 429 429 429 429 429 200 200 200 200 200
--- idempotency_status: NEW

=== TEST 9: what is pending counts
--- init
pending(POST => "/reject?id=$_&gate=1", body => 'b', headers => [split "\n", (from('6.6.6.6', $_))[0]]) for 1 .. 3;
--- request eval: ['POST /', "POST /reject?id=1&gate=1\nb"]
--- more_headers eval: [from('6.6.6.6', 4, 1)]
--- idempotency_status: LIMITED IN_PROGRESS

=== TEST 10: one client can't fill a zone for all
--- http_config
idempotency_zone zone=small:256k;
set_real_ip_from 127.0.0.1;
real_ip_header X-From;
--- config
location / {
    idempotency zone=small;
    idempotency_max_response 16k;
    idempotency_quota 3;
    proxy_pass http://backend;
}
--- request: POST /?size=5000
--- more_headers eval: [from('7.7.7.7', 1 .. 200), map from("8.8.8.$_", 1), 1 .. 10]
--- idempotency_status eval: 'NEW ' x 3 . 'LIMITED ' x 197 . 'NEW ' x 10
--- executions: 13
