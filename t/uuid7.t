# docs/directives.md, "idempotency_key_format" uuid7 and
# "idempotency_key_max_age": a key tells when it was made, so that no retry,
# however late, executes twice. The moment it ends is in window.t, a zone that
# is full in full.t.

use lib 't/lib';
use Test::Nginx::Idempotency 'no_plan';
use Idempotency ();

sub key { return Idempotency::uuid7(@_) }

# a request with each of these keys
sub with { return [ map "Idempotency-Key: $_", @_ ] }

our @good = (key(0), uc key(0), '"' . key(0) . '"', key(30 * 60), key(-55),
             map key(0, variant => $_), qw(8 9 a b A B));
our @old = (key(61 * 60), key(86400), '00000000-0000-7000-8000-000000000000');

run_tests();

__DATA__

=== TEST 1: idempotency_key_format uuid7: a UUID of version 7, from at most a minute ahead
--- config
idempotency zone=z;
idempotency_key_format uuid7;
idempotency_key_max_age 1h;
add_header X-Expires "$idempotency_expires" always;

location / { proxy_pass http://backend; }
location /strict { idempotency_key_max_age 10s; proxy_pass http://backend; }
location /here { if ($http_x_strict) { rewrite ^ /strict last; } proxy_pass http://backend; }
location /status { idempotency_status expired=410; proxy_pass http://backend; }
location /dry { idempotency_dry_run on; proxy_pass http://backend; }
location /content { idempotency_missing_key content; proxy_pass http://backend; }

location /window {
    idempotency_window 30m;
    idempotency_key_max_age 10m;
    proxy_pass http://backend;
}
--- request: POST /good
--- more_headers eval: with(map { ($_) x 2 } @::good)
--- idempotency_status eval: 'NEW REPLAYED ' x @::good
--- varies: X-Expires
--- executions eval: scalar @::good

=== TEST 2: ... in upper and lower case it is one
--- request: POST /case
--- more_headers eval: my $key = key(0); with($key, uc $key, '"' . ucfirst($key) . '"')
--- idempotency_status: NEW REPLAYED REPLAYED

=== TEST 3: ... anything else is malformed
--- request: POST /malformed
--- more_headers eval
with('abc', key(-600), 'ffffffff-ffff-7000-8000-000000000000', key(0) . '0', substr(key(0), 1), key(0) =~ s/b/g/gr,
     map(key(0, version => $_), 0 .. 6, 8, 'a', 'f'), map(key(0, variant => $_), 0, 7, 'c', 'f'))
--- response_body_like: malformed
--- idempotency_status: MALFORMED
--- executions: 0

=== TEST 4: a key that is not bound and too old is refused, for good
--- request: POST /old
--- more_headers eval: with(@::old, @::old)
--- response_headers: ! Retry-After
--- response_body_like: "[^"]*expired"
--- idempotency_status: EXPIRED
--- executions: 0

=== TEST 5: ... with idempotency_status expired
--- request: POST /status
--- more_headers eval: with(@::old)
--- error_code: 410
--- idempotency_status: EXPIRED

=== TEST 6: ... and is told of in a dry run
--- request: POST /dry
--- more_headers eval: with(@::old)
--- idempotency_status: EXPIRED_DRY_RUN
--- executions: 3

=== TEST 7: a token is bound beyond its key's age, until its window ends
--- request: POST /window
--- more_headers eval: with((key(60)) x 2)
--- varies: X-Expires
--- response_headers_like eval: ['', 'X-Expires: 1[78]\d\d']
--- idempotency_status: NEW REPLAYED

=== TEST 8: a bound token is answered where its key is too old, or in conflict
--- request eval: [("POST /here") x 2, "POST /here\nother", "POST /here"]
--- more_headers eval
my ($key, $strict) = (key(60), "\nX-Strict: 1");
with($key, map "$_$strict", $key, $key, key(60))
--- varies: X-Expires
--- idempotency_status: NEW REPLAYED CONFLICT EXPIRED
--- executions: 1

=== TEST 9: what was released is fresh, and where it is too old it is refused
--- request eval: ["POST /released?status=429", "POST /released?status=429", "POST /strict"]
--- more_headers eval: with((key(60)) x 3)
--- error_code: 429 429 409
--- idempotency_status: NEW NEW EXPIRED
--- executions: 2

=== TEST 10: without a key, the content has no time of its own
--- request: POST /content
--- idempotency_status: NEW

=== TEST 11: idempotency_key_max_age is the window by default, each location's own
--- config
idempotency zone=z;
idempotency_key_format uuid7;
idempotency_window 30m;

location / { proxy_pass http://backend; }
location /longer { idempotency_window 2h; proxy_pass http://backend; }
--- request eval: ['POST /', 'POST /', 'POST /longer', 'POST /longer']
--- more_headers eval: with(map key(60 * $_), 20, 31, 40, 121)
--- idempotency_status: NEW EXPIRED NEW EXPIRED
--- executions: 2
