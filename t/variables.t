# docs/variables.md, and docs/directives.md, idempotency_log_level: what the logs,
# the client and the upstream can be told.

use lib 't/lib';
use Test::Nginx::Idempotency 'no_plan';

sub with { return [ map { "Idempotency-Key: $_" } @_ ] }

our @levels = qw(default info notice warn error);

# a store that is asked again, as its answer was lost, has replayed it twice
our @replays = map { Idempotency::answers_late() ? '\d+' : $_ } 1 .. 4;

run_tests();

__DATA__

=== TEST 1: $idempotency_status; the log says what the client is told
--- http_config
map $idempotency_status $early {
    volatile;
    default "early-$idempotency_status";
    "" none;
}

map "$idempotency_status|$idempotency_key|$idempotency_token|$idempotency_digest $sent_http_x_all" $agrees {
    "~^(.*) \1$" agrees;
    default differs;
}

log_format agrees '$request_uri $agrees';
access_log logs/agrees.log agrees;
--- config
idempotency zone=z;
idempotency_in_progress reject;

add_header X-All "$idempotency_status|$idempotency_key|$idempotency_token|$idempotency_digest" always;
add_header X-Key $idempotency_key always;
add_header X-Token $idempotency_token always;
add_header X-Digest $idempotency_digest always;
add_header X-Age $idempotency_age always;
add_header X-Replays $idempotency_replays always;

location / { proxy_pass http://backend; }
location /small { idempotency_max_response 4; proxy_pass http://backend; }
location /reject { idempotency_missing_key reject; proxy_pass http://backend; }
location /bypass { idempotency_bypass 1; proxy_pass http://backend; }
location /off { idempotency off; proxy_pass http://backend; }
location /return { return 200 "status=[$idempotency_status]\n"; }
location /log { idempotency off; default_type text/plain; alias logs/agrees.log; }

location /dry {
    idempotency_dry_run on;
    idempotency_missing_key reject;
    proxy_pass http://backend;
    location /dry/small { idempotency_max_response 4; proxy_pass http://backend; }
    location /dry/pass { idempotency_missing_key pass; proxy_pass http://backend; }
}

# asked for before there is anything to say
location /early {
    set $seen "$idempotency_status$idempotency_token$idempotency_age";
    if ($early = never) { return 500; }
    proxy_pass http://backend;
}

location /told {
    proxy_set_header X-Got "$idempotency_status|$idempotency_key|$idempotency_token|$idempotency_digest";
    sub_filter_types *;
    sub_filter "X-Got: $sent_http_x_all" "what the client gets";
    proxy_pass http://backend;
}
--- init: pending(POST => '/?id=1-pending&gate=1', key => 'v2', body => 'b');
--- request eval
[ "POST /1\nb", "POST /1\nb", "POST /1\nc", "POST /?id=1-pending&gate=1\nb", "POST /small", "POST /small",
  'POST /reject', 'POST /1', 'POST /bypass', 'POST /1', 'GET /1', 'PUT /1', 'POST /off', 'POST /return',
  'GET /log' ]
--- more_headers eval: with(qw(v1 v1 v1 v2 v3 v3), '', '"', 'v6', '', ('v7') x 5)
--- idempotency_status
NEW REPLAYED CONFLICT IN_PROGRESS NEW NOT_KEPT MISSING MALFORMED BYPASS - - - - - -
--- varies: X-All X-Age X-Replays
--- response_body_like eval
[ ('') x 13, 'status=\[\]', '\A(?!.*/(?!ver )\S* differs).*/1 agrees\n/1 agrees\n/1 agrees\n' ]

=== TEST 2: $idempotency_status of a dry run
--- request eval
[ "POST /dry\nb", "POST /dry\nb", "POST /dry\nc", ('POST /dry/small') x 2, 'POST /dry', 'POST /dry',
  'POST /dry/pass', 'GET /dry', 'GET /log' ]
--- more_headers eval: with(qw(d1 d1 d1 d2 d2), '', '"', '', 'd3', 'd3')
--- idempotency_status eval
CORE::join ' ', map({ $_ . '_DRY_RUN' } qw(NEW REPLAYED CONFLICT NEW NOT_KEPT MISSING MALFORMED)), '- - -'
--- response_body_like eval
[ ('') x 9, '\A(?!.*/(?!ver )\S* differs).*/dry agrees\n/dry agrees\n/dry agrees\n' ]

=== TEST 3: $idempotency_key: a string's content, and nothing of what is malformed or not protected
--- request eval: [ ('POST /3') x 4, 'POST /off' ]
--- more_headers eval: with('a b', '"a \"b\\\\"; v=1', '', '"k4', 'k5')
--- response_headers eval: [ 'X-Key: a b', 'X-Key: a "b\\', ('! X-Key') x 3 ]
--- error_code: 200 200 200 400 200

=== TEST 4: $idempotency_token is that of the key, $idempotency_digest that of the content
--- request eval: [ map { "POST /4\n$_" } qw(b b b c b b b) ]
--- more_headers eval: with('t1', 't1', '"t1"', 't1', "t1\nAuthorization: x", 't2', '')
--- idempotency_status: NEW REPLAYED REPLAYED CONFLICT REPLAYED NEW -
--- varies: X-All X-Age X-Replays
--- response_headers eval
my ($t1, $t2) = qw(b3de0e1591c8d79107c15b293eaf35ef2e4685648bf28754c6c9e91f0117a492
                   339ac972df6840d0f54b40bd046aeff0591e656ad7d37e1c62a9d77dde427627);
my ($b, $c) = qw(d41c172f77a6bb3a12803c187fe232e51df8a4399fe803ac8b41fb6a3d4e7a3c
                 58876d813d38fac06851b4d09457610a1bd0a77854a0f5f1248836115663d65c);
[ (map { "X-Token: $$_[0]\nX-Digest: $$_[1]" } ([ $t1, $b ]) x 3, [ $t1, $c ], [ $t1, $b ], [ $t2, $b ]),
  "! X-Token\n! X-Digest" ]

=== TEST 5: $idempotency_replays counts replays, and no refusals; $idempotency_age is that of any outcome
--- request eval: [ (map { "POST /5\n$_" } qw(b b b b c b)), ('POST /small') x 2 ]
--- more_headers eval: with(('a1') x 6, ('a2') x 2)
--- error_code: 200 200 200 200 409 200 200 409
--- response_headers_like eval
[ "X-Replays:\nX-Age:", (map { "X-Replays: $_\nX-Age: " . '\d+' } @::replays[0 .. 2]), 'X-Age: \d+',
  "X-Replays: $::replays[3]\nX-Age: " . '\d+', 'X-Age:', "X-Replays:\nX-Age: " . '\d+' ]

=== TEST 6: those that are asked for too early are not stuck
--- request eval: [ ('POST /early') x 2 ]
--- more_headers: Idempotency-Key: early
--- idempotency_status: NEW REPLAYED
--- response_headers_like eval
[ map { "X-All: $_" . '\|early\|[0-9a-f]{64}\|[0-9a-f]{64}' } qw(NEW REPLAYED) ]
--- varies: X-All X-Age X-Replays

=== TEST 7: the upstream may be told the same
--- request
POST /told?echo=1
b
--- more_headers: Idempotency-Key: "told"
--- response_headers_like: X-All: NEW\|told\|[0-9a-f]{64}\|[0-9a-f]{64}
--- response_body_like: what the client gets

=== TEST 8: $idempotency_expires: the seconds until the token is free
--- http_config
log_format ends '$request_uri=$idempotency_status=$idempotency_expires=$idempotency_fence=$sent_http_x_fence=$idempotency_reason';
access_log logs/ends.log ends;
--- config
idempotency zone=z;
idempotency_window 1h;
idempotency_in_progress reject;
proxy_set_header X-Fence $idempotency_fence;
add_header X-Fence $idempotency_fence always;
add_header X-Expires $idempotency_expires always;
sub_filter_types *;
sub_filter "X-Fence: $sent_http_x_fence" "fenced";

location / { proxy_pass http://backend; }
location /two { idempotency_window 90s; proxy_pass http://backend; }
location /large { idempotency_max_response 10; proxy_pass http://backend; }
location /off { idempotency off; proxy_pass http://backend; }
location /log { idempotency off; default_type text/plain; alias logs/ends.log; }
--- init: pending(POST => '/?id=8-pending&gate=1', key => 'e4', body => 'b');
--- request eval
[ "POST /8?echo=1\nb", "POST /8?echo=1\nb", "POST /8?echo=1\nother", "POST /two?status=429\nb",
  "POST /large", "POST /large", "POST /?id=8-pending&gate=1\nb", 'POST /8?echo=1', 'POST /off?echo=1', 'GET /log' ]
--- more_headers eval: with(qw(e1 e1 e1 e2 e3 e3 e4), '', 'e5', 'e5')
--- idempotency_status: NEW REPLAYED CONFLICT NEW NEW NOT_KEPT IN_PROGRESS - - -
--- error_code: 200 200 409 429 200 409 409 200 200 200
--- varies: X-Expires
--- response_headers_like eval
my $left = '(?:3600|35\d\d)';
[ (map { "X-Expires: $_\nX-Fence: " . '[1-9]\d*' } 3600, $left, $left, 90, 3600, $left),
  'X-Expires: ', ("X-Expires: \nX-Fence: ") x 3 ]
--- response_body_like eval
[ 'fenced', 'fenced', ('') x 5, ('\A(?!.*(?i:fence))') x 2,
  '/8\?echo=1=NEW=3600=(\d+)=\1=-\n.*=CONFLICT=\S+=body\n/two\?status=429=NEW=0=(\d+)=\2=-\n' ]

=== TEST 9: a line for each replay and refusal, at idempotency_log_level, without the key
--- config eval
CORE::join '', "idempotency zone=z;\n", map { my ($path, $level) = @$_; <<"EOC" } [ 'default', '' ],
location /$path {
    $level
    idempotency_in_progress reject;
    idempotency_missing_key reject;
    proxy_pass http://backend;
    location /$path/small { idempotency_max_response 4; proxy_pass http://backend; }
    location /$path/dry { idempotency_dry_run on; proxy_pass http://backend; }
}
EOC
    map { [ $_, "idempotency_log_level $_;" ] } qw(info notice warn error);
--- init
pending(POST => "/$_?id=9-$_&gate=1", key => "the-key-$_-p", body => 'b') for @::levels;
--- request eval
[ map { ("POST /$_\nb", "POST /$_\nb", "POST /$_\nc", "POST /$_\nb", "POST /$_\nb",
         "POST /$_/small", "POST /$_/small", "GET /$_", "POST /$_?id=9-$_&gate=1\nb",
         "POST /$_/dry\nb", "POST /$_/dry\nc") } @::levels ]
--- more_headers eval
with(map { my $key = "the-key-$_"; ($key, $key, $key, '', "\"$key", "$key-s", "$key-s", $key,
                                    "$key-p", "$key-d", "$key-d") } @::levels)
--- idempotency_status eval
'NEW REPLAYED CONFLICT MISSING MALFORMED NEW NOT_KEPT - IN_PROGRESS NEW_DRY_RUN CONFLICT_DRY_RUN ' x 5
--- grep_error_log eval: qr/\[\w+\](?=.* idempotency: .*, client: )/
--- grep_error_log_out eval
CORE::join '', map { "[$_]\n" x 7 } qw(notice info notice warn error)
--- no_error_log: the-key

=== TEST 10: a map's regular expression in our strings leaves a location's captures alone
--- http_config
map $http_x_user $user { ~^(u)(.*)$ $2; }
map $http_x_user $week { default 1h; ~^u 7d; }
--- config
idempotency zone=z;
idempotency_key $arg_key;

location ~ ^/bypass/(.*) { idempotency_bypass $user; proxy_pass http://backend/?id=$1; }
location ~ ^/key/(.*) { idempotency_key $arg_no$user; proxy_pass http://backend/?id=$1; }
location ~ ^/identity/(.*) { idempotency_identity $user; proxy_pass http://backend/?id=$1; }
location ~ ^/scope/(.*) { idempotency_scope $user; proxy_pass http://backend/?id=$1; }
location ~ ^/bind/(.*) { idempotency_bind $user; proxy_pass http://backend/?id=$1; }
location ~ ^/window/(.*) { idempotency_window $week; proxy_pass http://backend/?id=$1; }
location ~ ^/quota/(.*) { idempotency_quota 9 $user; proxy_pass http://backend/?id=$1; }
location ~ ^/captured/(.*) { idempotency_bypass $user; idempotency_key $1; proxy_pass http://backend/?id=$1; }
--- request eval
[ map { ("POST /$_/order-$_?key=$_\nb") x 2 } qw(bypass key identity scope bind window quota captured) ]
--- more_headers: X-User: u0
--- idempotency_status eval: 'NEW REPLAYED ' x 8
--- response_body_like eval: [ map { (" id=order-$_\\n") x 2 } qw(bypass key identity scope bind window quota captured) ]

=== TEST 11: nor does one that does not match, in them or behind them
--- http_config
map $http_x_user $user { ~^(x)(.*)$ $2; }
map $http_x_user $pool { default backend; ~^(x)$ $1; }
--- config
idempotency zone=z;

location ~ ^/key/(.*) { idempotency_key $user$1; proxy_pass http://$pool/?id=$1; }
location ~ ^/bind/(.*) { idempotency_key $arg_key; idempotency_bind $user$1; proxy_pass http://$pool/?id=$1; }
--- request eval
[ map { ("POST /$_/order-$_?key=$_\nb") x 2 } qw(key bind) ]
--- more_headers: X-User: u0
--- idempotency_status eval: 'NEW REPLAYED ' x 2
--- response_body_like eval: [ map { (" id=order-$_\\n") x 2 } qw(key bind) ]
