# docs/requests.md 5, and docs/directives.md, idempotency_identity: a
# token is bound to who asked and to what was asked; anything else with the same
# key is refused and learns nothing.

use lib 't/lib';
use Test::Nginx::Idempotency 'no_plan';

our @alice = ('Authorization: Bearer alice', 'Cookie: session=alice');
our @bob = ('Authorization: Bearer bob', 'Cookie: session=bob');
our @api_keys = qw(X-Api-Key Api-Key X-Auth-Token X-Access-Token Private-Token
                   X-Goog-Api-Key Ocp-Apim-Subscription-Key X-Shopify-Access-Token);

our @changing = qw(traceparent X-Request-Id X-Stripe-Client-User-Agent X-Stripe-Client-Telemetry
                   X-Recaptcha-Token X-CSRF-Token X-Auth-Timestamp X-Auth-Signature Sec-User-Token
                   X-Account-Request-Id X-User-Location);

# several headers each, or one, or none
sub with { return [ map { ref ? CORE::join("\n", @$_) : $_ } @_ ] }

run_tests();

__DATA__

=== TEST 1: what nobody in particular bound is anybody's, but without its cookies
A first POST may begin the session that its retry then has.
--- config
location / { idempotency zone=z; idempotency_key $arg_key; proxy_pass http://backend; }
--- request: POST /?key=1&h=Set-Cookie:%20session=new
--- more_headers eval
with('', '', 'Cookie: session=new', 'Authorization: Bearer alice', 'X-Api-Key: x', '')
--- idempotency_status: NEW REPLAYED REPLAYED REPLAYED REPLAYED REPLAYED
--- varies: Set-Cookie
--- response_headers eval: [ 'Set-Cookie: session=new', ('! Set-Cookie') x 5 ]
--- executions: 1

=== TEST 2: ... but for what he asked
--- request eval: [ "POST /?key=2\nb", "POST /?key=2\nc", "POST /?key=2\nb" ]
--- more_headers eval: with('', 'Cookie: session=new', 'Cookie: session=new')
--- idempotency_status: NEW CONFLICT REPLAYED

=== TEST 3: a bearer token stands without cookies, but with API keys; the case of its scheme does not count
--- request: POST /?key=3
--- more_headers eval
with($::alice[0], $::alice[0], \@::alice, [ $::alice[0], $::bob[1] ],
     (map { [ $::alice[0], "$_: b" ] } @::api_keys),
     'Authorization: bearer alice', 'authorization: BEARER   alice',
     $::bob[0], '', $::alice[1], $::bob[1], [ $::bob[0], $::alice[1] ], 'Cookie: Bearer alice',
     'Authorization: Bearer Alice', 'Authorization: Token alice', 'Authorization: alice',
     'Authorization: Beareralice', $::alice[0])
--- idempotency_status eval
'NEW' . ' REPLAYED' x 3 . ' CONFLICT' x 8 . ' REPLAYED' x 2 . ' CONFLICT' x 10 . ' REPLAYED'
--- executions: 1

=== TEST 4: a token without a scheme is a token
--- request: POST /?key=4
--- more_headers eval
with('Authorization: AbC', 'Authorization: abc', 'Cookie: AbC', 'Authorization: AbC')
--- idempotency_status: NEW CONFLICT CONFLICT REPLAYED

=== TEST 5: all cookies count
--- request eval: [ ("POST /?key=5") x 5, ("POST /?key=5b") x 3 ]
--- more_headers eval
with($::alice[1], $::alice[1], $::bob[1], '', $::alice[1],
     map { [ $::alice[1], "Cookie: x=$_" ] } 1, 2, 1)
--- idempotency_status: NEW REPLAYED CONFLICT CONFLICT REPLAYED NEW CONFLICT REPLAYED

=== TEST 6: a password that many share tells nobody apart: their sessions do
--- request eval: [ ("POST /?key=6") x 11, ("POST /?key=6b") x 5, ("POST /?key=6c") x 2 ]
--- more_headers eval
my @basic = map { "Authorization: $_ dXNlcjpwYXNz" } qw(Basic basic BASIC);
my $other = 'Authorization: Basic eDp5';
with((map { [ $_, $::alice[1] ] } @basic), (map { [ $_, $::bob[1] ] } @basic),
     @basic, [ $other, $::alice[1] ], $::alice[1],
     @basic, $other, $basic[0],
     map { [ 'Authorization: Basically x', $_ ] } $::alice[1], $::bob[1])
--- idempotency_status eval
'NEW REPLAYED REPLAYED' . ' CONFLICT' x 8 . ' NEW REPLAYED REPLAYED CONFLICT REPLAYED'
. ' NEW REPLAYED'

=== TEST 7: an API key is a caller, alone or together with the cookies
--- request eval
[ map { ("POST /?key=7-$_") x 4, ("POST /?key=7-$_-cookie") x 4 } @::api_keys ]
--- more_headers eval
with(map { ("$_: a", "$_: b", lc($_) . ': a', '',
            [ "$_: a", $::alice[1] ], [ "$_: a", $::bob[1] ], [ $::alice[1], "$_: a" ],
            [ "$_: b", $::alice[1] ]) } @::api_keys)
--- idempotency_status eval: 'NEW CONFLICT REPLAYED CONFLICT ' x 16
--- executions: 16

=== TEST 8: an empty credential is none
--- request eval: [ map { ("POST /?key=8-$_") x 2 } 'Authorization', @::api_keys ]
--- more_headers eval: with(map { ("$_: ", "$_: b") } 'Authorization', @::api_keys)
--- idempotency_status eval: 'NEW REPLAYED ' x 9

=== TEST 9: a key in another header is another, two come in any order, no other header is one
--- request eval
[ map { my ($case, $n) = @$_; ("POST /?key=9$case") x $n } [ 'a', 4 ], [ 'b', 3 ], [ 'c', 3 ], [ 'd', 2 ] ]
--- more_headers eval
with('X-Api-Key: a', 'Api-Key: a', 'X-Auth-Token: a', 'Cookie: X-Api-Key=a',
     [ 'X-Api-Key: a', 'X-Auth-Token: b' ], [ 'X-Auth-Token: b', 'X-Api-Key: a' ],
     [ 'X-Api-Key: b', 'X-Auth-Token: a' ],
     [ 'X-Api-Key: a', 'X-Api-Key: b' ], 'X-Api-Key: a', [ 'X-Api-Key: a', 'X-Api-Key: b' ],
     'X-Other: a', 'X-Other: b')
--- idempotency_status
NEW CONFLICT CONFLICT CONFLICT NEW REPLAYED CONFLICT NEW CONFLICT REPLAYED NEW REPLAYED

=== TEST 10: a bearer token is for one account, tenant or user, whatever stands first
--- request eval
[ map { ("POST /?key=10-$_") x 5 } qw(Stripe-Account X-Tenant X-Impersonate-User) ]
--- more_headers eval
with(map { ([ $::alice[0], "$_: a", 'X-Api-Key: k' ], [ 'X-Api-Key: k', "$_: a", $::alice[0] ],
            [ $::alice[0], "$_: b", 'X-Api-Key: k' ], [ $::alice[0], 'X-Api-Key: k' ],
            [ $::alice[0], "$_: ", 'X-Api-Key: k' ]) } qw(Stripe-Account X-Tenant X-Impersonate-User))
--- idempotency_status eval: 'NEW REPLAYED CONFLICT CONFLICT CONFLICT ' x 3

=== TEST 11: they count in any order, those of one name in theirs; a scheme alone is nobody's
--- request eval
[ map { my ($n, $of) = @$_; ("POST /?key=11-$n") x $of } [ 1, 3 ], [ 2, 3 ], [ 3, 2 ], [ 4, 4 ] ]
--- more_headers eval
my @h = map { "X-Token-$_: $_" } 1 .. 40;
with([ @h[0 .. 31] ], [ CORE::reverse @h[0 .. 31] ], [ @h[0 .. 30] ], [ @h ], [ @h ], [ @h[0 .. 38], 'X-Token-40: x' ],
     [ 'X-Token: a', 'X-Token: b' ], [ 'X-Token: b', 'X-Token: a' ],
     'Authorization: Bearer', '', 'Authorization: bearer', 'Authorization: Basic ')
--- idempotency_status
NEW REPLAYED CONFLICT NEW REPLAYED CONFLICT NEW CONFLICT NEW REPLAYED REPLAYED REPLAYED

=== TEST 12: what a key string names is no credential; what changes by itself on a retry is none
--- config
location / {
    idempotency zone=z;
    idempotency_key $http_x_order_token $arg_key;
    proxy_pass http://backend;
}
--- request eval: [ ("POST /") x 2, ("POST /?key=12") x 3 ]
--- more_headers eval
my @retry = map { [ 'X-Api-Key: a', map "$_: " . rand, @::changing ] } 1 .. 3;
with((map { [ 'X-Order-Token: a', 'X-Order-Token2: a' ] } 1, 2), @retry)
--- idempotency_status: NEW REPLAYED NEW REPLAYED REPLAYED

=== TEST 13: a stranger gets nothing of the response
--- config
location / { idempotency zone=z; idempotency_key $arg_key; proxy_pass http://backend; }
--- request: POST /?key=13&status=201
--- more_headers eval: with($::alice[0], $::bob[0])
--- idempotency_status: NEW CONFLICT
--- error_code: 201 409
--- response_body_like eval: [ 'exec=', '\A(?!.*(?i:exec|replayed|bearer|\b201 ))' ]
--- raw_response_headers_like eval: [ 'X-Exec: ', '\A(?!.*(?i:exec|replayed|bearer|\b201 ))' ]

=== TEST 14: idempotency_identity stands for all of them
--- config
idempotency zone=z;
idempotency_key $arg_key;

location / { idempotency_identity $http_x_user; proxy_pass http://backend; }
location /two { idempotency_identity "$http_x_user/$http_x_device"; proxy_pass http://backend; }
--- request eval: [ ("POST /?key=11") x 5, ("POST /two?key=11b") x 3 ]
--- more_headers eval
with([ 'X-User: alice', @::alice ], [ 'X-User: alice', @::bob ], 'X-User: alice',
     [ 'X-User: bob', @::alice ], \@::alice,
     map { [ 'X-User: alice', "X-Device: $_" ] } 1, 1, 2)
--- idempotency_status: NEW REPLAYED REPLAYED CONFLICT CONFLICT NEW REPLAYED CONFLICT

=== TEST 15: ... where it is empty, or all in it is, the request's own credentials do
--- config
idempotency zone=z;
idempotency_key $arg_key;

location / { idempotency_identity $http_x_visitor; proxy_pass http://backend; }
location /two { idempotency_identity "$cookie_a|${cookie_b}"; proxy_pass http://backend; }
location ~ ^/captured(.*) { idempotency_identity "<$1>"; proxy_pass http://backend; }
location /content { idempotency_identity $cookie_visitor; idempotency_missing_key content; proxy_pass http://backend; }
--- request eval
[ map { my ($uri, $n) = @$_; ("POST $uri") x $n } [ '/?key=15', 4 ], [ '/two?key=15b', 4 ], [ '/two?key=15c', 3 ],
      [ '/captured?key=15d', 2 ], [ '/capturedx?key=15e', 2 ], [ '/content', 4 ] ]
--- more_headers eval
my @sessions = map "Cookie: session=$_", qw(ALICE BOB ALICE);
with((map { [ $_, 'X-Visitor: ' ] } $::alice[0], $::bob[0], @sessions[0, 0] => ), @sessions, 'Cookie: a=1',
     map({ "Cookie: $_" } 'a=1; session=x', 'a=1; session=y', 'b=1; session=x'),
     @sessions[0, 1], @sessions[0, 1], @sessions, 'Cookie: visitor=v; session=ALICE')
--- idempotency_status
NEW CONFLICT CONFLICT CONFLICT NEW CONFLICT REPLAYED CONFLICT NEW REPLAYED CONFLICT NEW CONFLICT NEW REPLAYED NEW NEW REPLAYED NEW

=== TEST 16: without a value it is nobody's, with one its owner has the cookies
--- config
location / {
    idempotency zone=z;
    idempotency_key $arg_key;
    idempotency_identity $http_x_user;
    proxy_pass http://backend;
}
--- request eval
[ map { ("POST /?key=12-$_&h=Set-Cookie:%20session=new") x 4 } 'nobody', 'a' ]
--- more_headers eval
with('X-User: ', 'X-User: a', $::alice[0], 'X-User: b', 'X-User: a', 'X-User: a', 'X-User: b', '')
--- idempotency_status: NEW REPLAYED REPLAYED REPLAYED NEW REPLAYED CONFLICT CONFLICT
--- varies: Set-Cookie
--- response_headers eval
[ map { $_ ? 'Set-Cookie: session=new' : '! Set-Cookie' } 1, 0, 0, 0, 1, 1, 0, 0 ]

=== TEST 17: idempotency_replay_cookies identified, always and never
--- config
idempotency zone=z;
idempotency_key $arg_key;

location / { proxy_pass http://backend; }
location /always { idempotency_replay_cookies always; proxy_pass http://backend; }
location /constant { idempotency_identity nobody; proxy_pass http://backend; }
location /never { idempotency_replay_cookies never; proxy_pass http://backend; }
--- request eval
[ map { my ($path, $n) = @$_; ("POST $path?key=13$path&h=Set-Cookie:%20session=new") x $n }
      [ '/', 3 ], [ '/always', 2 ], [ '/never', 2 ], [ '/constant', 3 ], [ '/api', 2 ], [ '/basic', 2 ],
      [ '/both', 2 ] ]
--- more_headers eval
my ($key, $basic) = ('X-Api-Key: public', 'Authorization: Basic YTpi');
with($::bob[1], $::bob[1], '', '', $::bob[1], $::bob[1], $::bob[1], $::bob[0], \@::alice, '', $key, $key, $basic, $basic,
     ([ $key, $basic, $::bob[1] ]) x 2)
--- idempotency_status
NEW REPLAYED CONFLICT NEW REPLAYED NEW REPLAYED NEW REPLAYED REPLAYED NEW REPLAYED NEW REPLAYED NEW REPLAYED
--- varies: Set-Cookie
--- response_headers eval
[ map { $_ ? 'Set-Cookie: session=new' : '! Set-Cookie' } 1, 1, 0, 1, 1, 1, 0, 1, 0, 0, 1, 0, 1, 0, 1, 1 ]

=== TEST 18: method, path and body make another request
--- config
idempotency zone=z;

location / { proxy_pass http://backend; }
location /small { idempotency_max_response 4; proxy_pass http://backend; }
--- request eval
[ "POST /x\nb", "PATCH /x\nb", "POST /y\nb", "POST /X\nb", "POST /x/\nb", "POST /x\nc", "POST /x",
  "POST /x\nb" ]
--- more_headers
Idempotency-Key: 14
Content-Type: text/plain
--- idempotency_status: NEW CONFLICT CONFLICT CONFLICT CONFLICT CONFLICT CONFLICT REPLAYED

=== TEST 19: so do host and content type, and no other header
--- request
POST /x
b
--- more_headers eval
[ map { "Idempotency-Key: 15\n$_" }
  'Content-Type: text/plain', "Content-Type: text/plain\nHost: elsewhere", 'Content-Type: application/json',
  '', "Content-Type: text/plain\nHost: LOCALHOST",
  "Content-Type: text/plain\nX-Other: 1\nUser-Agent: y\nAccept: */*", 'Content-Type: text/plain' ]
--- idempotency_status: NEW CONFLICT CONFLICT CONFLICT REPLAYED REPLAYED REPLAYED

=== TEST 20: so do arguments, and their order; what is beside each other does not run together
--- request eval
[ (map { my ($first, $then) = @$_; map { "POST /x?$_" } $first, $then, $first }
   [ 'a=1', 'a=2' ], [ 'a=2', '' ], [ 'a=3', 'a=3&b=1' ], [ 'a=1&b=2', 'b=2&a=1' ]),
  "POST /ab?x=c\nd", "POST /a?x=bc\nd", "POST /ab?x=cd" ]
--- more_headers eval: [ map { "Idempotency-Key: 16-$_" } map { ($_) x 3 } 1 .. 5 ]
--- idempotency_status eval: 'NEW CONFLICT REPLAYED ' x 4 . 'NEW CONFLICT CONFLICT'

=== TEST 21: a conflict goes before any outcome
--- request eval
[ "POST /?status=500", "POST /?status=500\nother", "POST /small", "POST /small\nother", "POST /small" ]
--- more_headers eval: [ map { "Idempotency-Key: 17-$_" } 1, 1, 2, 2, 2 ]
--- idempotency_status: NEW CONFLICT NEW CONFLICT NOT_KEPT
--- error_code: 500 409 200 409 409

=== TEST 22: a conflict goes before what is pending
--- config
idempotency zone=z;
idempotency_in_progress reject;
location / { proxy_pass http://backend; }
--- init
pending(POST => '/?id=18&gate=1', key => 18, body => 'b', headers => [ $::bob[0] ]);
--- request eval: [ map { "POST /?id=18&gate=1\n$_" } 'other', 'b', 'b' ]
--- more_headers eval
with(map { [ 'Idempotency-Key: 18', $_ ] } $::bob[0], $::alice[0], $::bob[0])
--- idempotency_status: CONFLICT CONFLICT IN_PROGRESS
--- executions: 0
