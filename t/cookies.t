# docs/directives.md, idempotency_identity and idempotency_ignore_cookies: which
# cookies tell who asks. An honest retry with cookies in another order, in other
# lines, or with one that ticks, is the same request; another session is not.

use lib 't/lib';
use Test::Nginx::Idempotency 'no_plan';

run_tests();

__DATA__

=== TEST 1: neither order nor lines, white space or empty pairs count
--- config
location / {
    idempotency zone=z;
    idempotency_key $arg_key;
    add_header X-Reason $idempotency_reason always;
    proxy_pass http://backend;
}
--- request: POST /?key=cookies1
--- more_headers eval
[ map { "Cookie: $_" } 'session=a; cart=1; seen', 'seen; cart=1; session=a',
  'cart=1; session=a; seen=', "session=a\nCookie: cart=1\nCookie: seen",
  "seen\nCookie: cart=1\nCookie: session=a", "cart=1;seen\nCookie: \nCookie: session=a;",
  'session=a;cart=1;seen', "session=a ;\t cart=1  ;  seen  ", 'session = a; cart= 1; seen =',
  ';; session=a; ; cart=1;seen;', '; cart=1; session=a; seen' ]
--- idempotency_status eval: 'NEW' . ' REPLAYED' x 10
--- executions: 1

=== TEST 2: names, values and how many there are do count
So does the order of equal names.
--- request eval: [ map { ("POST /?key=cookies2-$_") x 3 } 1 .. 20 ]
--- more_headers eval
[ map { map { "Cookie: $_" } @$_, $$_[0] }
  [ 'session=a; cart=1', 'session=b; cart=1' ], [ 'session=a; cart=1', 'session=a; cart=2' ],
  [ 'session=a', 'Session=a' ], [ 'session=a', 'session2=a' ],
  [ 'session=a', 'session=a; cart=1' ],
  [ 'session=a; cart=1', 'session=a' ], [ 'session=a; cart=1', 'cart=1' ],
  [ 'a=1; b=2', 'a=2; b=1' ],
  [ 'a=1; b=2', 'a=1b=2' ], [ 'a=1; b=2', 'a="1; b=2"' ], [ 'a=1; b=2', 'a=1; b=; 2=' ],
  [ 'a=1; a=2', 'a=2; a=1' ], [ 'a=1; a=2', 'a=1' ], [ 'a=1; a=2', 'a=2' ],
  [ 'a=1', 'a="1"' ], [ 'a=b=c', 'a=b' ], [ 'a=b=c', 'a=bc' ], [ 'a=b', 'a=B' ],
  [ 'a=1', '' ], [ 'a=1; b=2', 'a=1; c=2' ] ]
--- idempotency_status eval: 'NEW CONFLICT REPLAYED ' x 20
--- response_headers eval: [ ('', 'X-Reason: identity', '') x 20 ]
--- executions: 20

=== TEST 3: those that change by themselves don't count
--- request eval: [ map { ("POST /?key=cookies3-$_") x 3 } 1 .. 30 ]
--- more_headers eval
[ map { map { "Cookie: $_" } "session=a; $_=1", "$_=2; session=a", 'session=a' }
  qw(_ga_ABC123 _gat _gat_UA-1 _clsk _hjSession_1 _hjSessionUser_1 _uetsid
     _uetvid _dd_s __hssc __hstc _pk_ses _pk_ses.1.ab sbjs_current sbjs_session
     mp_0a1b_mixpanel AMP_0a1b AMP_MKTG_x OptanonConsent AWSALB AWSALBCORS
     AWSALBTG __cf_bm bm_sz bm_sv ak_bmsc _abck datadome incap_ses_1_2
     XSRF-TOKEN) ]
--- idempotency_status eval: 'NEW REPLAYED REPLAYED ' x 30

=== TEST 4: those that only look alike count
--- request eval: [ map { ("POST /?key=cookies4-$_") x 3 } 1 .. 21 ]
--- more_headers eval
[ map { map { "Cookie: session=a; $_" } "$_=1", "$_=2", "$_=1" }
  qw(_ga _fbp csrftoken _gid ga_x _ga2 x_ga_1 _GA_1 _clsk2 x_clsk mp_mixpanel
     mp_x_mixpanel2 AWSAL XSRF-TOKEN2 xsrf-token OptanonAlertBoxClosed bm_s
     datadome2 incap_ses sbjs amp_1) ]
--- idempotency_status eval: 'NEW CONFLICT REPLAYED ' x 21

=== TEST 5: who has nothing else is nobody in particular
--- request: POST /?key=cookies5
--- more_headers eval
[ map { "Cookie: $_" } '_ga_1=1; AWSALB=x', '_ga_1=2', '', 'session=a' ]
--- idempotency_status: NEW REPLAYED REPLAYED REPLAYED

=== TEST 6: a browser's retry, as it was measured
--- request: POST /?key=cookies6
--- more_headers eval
[ map { "Cookie: $_" }
  'session=a; _ga=GA1.1.1.2; _ga_XYZ=GS1.1.17.1.0; AWSALB=abc; XSRF-TOKEN=1',
  'XSRF-TOKEN=2; _ga_XYZ=GS1.1.17.2.9; AWSALB=def; session=a; _ga=GA1.1.1.2' ]
--- idempotency_status: NEW REPLAYED

=== TEST 7: up to 256 cookies may come in any order, more in theirs
Those that don't count are not among them.
--- request eval: [ map { "POST /?key=cookies7-$_" } 1, 1, 2, 2, (3) x 5, 4, 4 ]
--- more_headers eval
my @c = map { "c$_=$_" } 1 .. 400;
[ map { 'Cookie: ' . CORE::join '; ', @$_ }
  [ @c[0 .. 255] ], [ CORE::reverse @c[0 .. 255] ], [ @c[0 .. 256] ], [ CORE::reverse @c[0 .. 256] ],
  [ @c ], [ '_ga_1=1', @c ], [ @c[0 .. 198], "$c[199]\nCookie: $c[200]", @c[201 .. 399] ],
  [ @c[0 .. 398], 'c400=x' ], [ @c ],
  [ map { "_ga_$_=1; c$_=1" } 1 .. 200 ], [ map { "c$_=1; _ga_$_=2" } CORE::reverse 1 .. 200 ] ]
--- idempotency_status
NEW REPLAYED NEW CONFLICT NEW REPLAYED REPLAYED CONFLICT REPLAYED NEW REPLAYED

=== TEST 8: by its content, the same order of another session is another
--- config
location / {
    idempotency zone=z;
    idempotency_missing_key content;
    proxy_pass http://backend;
}
--- request
POST /cookies8
order=1
--- more_headers eval
[ map { "Content-Type: application/x-www-form-urlencoded\nCookie: $_" }
  'session=a; _ga_X=1; AWSALB=1; XSRF-TOKEN=1',
  'XSRF-TOKEN=2; AWSALB=2; session=a; _ga_X=2', 'session=b; _ga_X=2' ]
--- idempotency_status: NEW REPLAYED NEW
--- executions: 2

=== TEST 9: idempotency_ignore_cookies adds to the list, or empties it
A name has one * anywhere, or none; a location's names replace its server's.
--- config
idempotency zone=z;
idempotency_key $arg_key;
idempotency_ignore_cookies srv tick_*;
idempotency_ignore_cookies *_end a*z;

location / { proxy_pass http://backend; }
location /own { idempotency_ignore_cookies own; proxy_pass http://backend; }
location /all { idempotency_ignore_cookies *; proxy_pass http://backend; }

location /off {
    idempotency_ignore_cookies off;
    proxy_pass http://backend;
    location /off/below { proxy_pass http://backend; }
}
--- request eval
[ map { my ($path, $n) = @$_; map { ("POST $path?key=cookies9$path$_") x 2 } 1 .. $n }
  [ '/', 18 ], [ '/own', 6 ], [ '/off', 5 ], [ '/off/below', 2 ] ]
--- more_headers eval
[ map { map { "Cookie: $_" } "session=a; $_=1", "session=a; $_=2" }
  qw(srv tick_ tick_x _end x_end az abcz _ga_1 XSRF-TOKEN
     tick Srv srv2 asrv _end2 a azb z own
     own _ga_1 AWSALB srv tick_x az
     srv own _ga_1 AWSALB XSRF-TOKEN
     srv _ga_1) ]
--- idempotency_status eval
'NEW REPLAYED ' x 9 . 'NEW CONFLICT ' x 9 . 'NEW REPLAYED ' x 3 . 'NEW CONFLICT ' x 3
. 'NEW CONFLICT ' x 7

=== TEST 10: a star ignores all, even those without a name
--- request: POST /all?key=cookies10
--- more_headers eval: [ map { "Cookie: $_" } 'a=1', 'b=2', '=3', '' ]
--- idempotency_status: NEW REPLAYED REPLAYED REPLAYED

=== TEST 11: nothing is ignored that isn't named
--- config
location / { idempotency zone=z; idempotency_key $arg_key; proxy_pass http://backend; }
--- request eval: [ map { ("POST /?key=cookies11-$_") x 2 } 1 .. 2 ]
--- more_headers eval
[ map { map { "Cookie: session=a; $_" } "$_=1", "$_=2" } qw(srv tick_x) ]
--- idempotency_status: NEW CONFLICT NEW CONFLICT
