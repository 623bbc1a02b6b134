# docs/directives.md, "idempotency_similar": a new key with content that was just
# seen with another one is marked or refused. How long "just" is, is tested in
# window.t.

use lib 't/lib';
use Test::Nginx::Idempotency 'no_plan';

our $form = 'Content-Type: application/x-www-form-urlencoded';

# a request with each of these keys, and with more headers
sub with { return [ map "$form\nIdempotency-Key: $_", @_ ] }
sub each_of { my ($k, @more) = @_; return map "Idempotency-Key: $k-$_\n$more[$_]", 0 .. $#more }

# who sends the same may be another one, or the same one who shows other things
our @others = ($form, 'Content-Type: text/plain', map "$form\n$_",
    map({ my $name = $_; map "$name: $_", 'a', 'b' }
        qw(Authorization X-Api-Key User-Agent Accept-Language)),
    map({ my $basic = $_; map "${basic}Cookie: s=$_", 1, 2 }
        '', "Authorization: Basic YTpi\n"),
    'X-Forwarded-For: 10.0.0.1', 'X-Forwarded-For: 10.0.0.2');
our @same = map "$form\nCookie: $_", 's=1', "s=1\nX-Forwarded-For: 10.0.0.2\n"
    . "User-Agent: b\nAccept-Language: de", 's=1; _ga_1=1', '_ga_1=2; s=1';

run_tests();

__DATA__

=== TEST 1: by default, and if off, nothing is similar
--- config
idempotency zone=z;
location / { proxy_pass http://backend; }
location /off { idempotency_similar off; proxy_pass http://backend; }
--- request eval: [map "POST $_\na=1", ('/') x 4, ('/off') x 4]
--- more_headers eval: with(('off1', 'off2') x 2, ('off3', 'off4') x 2)
--- idempotency_status: NEW NEW REPLAYED REPLAYED NEW NEW REPLAYED REPLAYED
--- executions: 4

=== TEST 2: warn: marked, logged without the key, executed, recorded and replayed as any other
--- config
location / {
    idempotency zone=z;
    idempotency_similar warn;
    idempotency_content_window 300s;
    idempotency_log_level warn;
    proxy_pass http://backend;
}
--- request
POST /warn
a=1
--- more_headers eval: with(map "warn-$_", qw(k l m k l m l))
--- idempotency_status: NEW SIMILAR SIMILAR REPLAYED REPLAYED REPLAYED REPLAYED
--- executions: 3
--- grep_error_log eval: qr/\[warn\].*content just seen, token: [0-9a-f]{64}(?!.*warn-[klm])/
--- grep_error_log_out eval: qr/\A(?:.*just seen.*\n){2}\z/

=== TEST 3: reject: refused, and its key is not bound
--- config
set_real_ip_from 127.0.0.1;
real_ip_header X-Forwarded-For;
idempotency zone=z;
idempotency_similar reject;
idempotency_content_window 300s;

location / { proxy_pass http://backend; }
location /any { satisfy any; allow all; proxy_pass http://backend; }
location /sooner { idempotency_in_progress reject; proxy_pass http://backend; }
--- request eval
[map { my $at = $_; map "POST $at\na=$_", (1) x 5, 2, 1, 2 } qw(/reject /any)]
--- more_headers eval
with(map { my $at = $_; map "$at-$_", qw(k l m k l l l k) } qw(reject any))
--- error_code eval: [(200, 409, 409, 200, 409, 200, 409, 409) x 2]
--- idempotency_status eval
'NEW SIMILAR SIMILAR REPLAYED SIMILAR NEW CONFLICT CONFLICT ' x 2
--- executions: 4

=== TEST 4: another type, credential, browser, language or address is nothing similar
--- request
POST /others
a=1
--- more_headers eval: [each_of(a => @::others), each_of(b => @::others)]
--- error_code eval: [(200) x @::others, (409) x @::others]
--- idempotency_status eval: 'NEW ' x @::others . ' SIMILAR' x @::others
--- executions: 16

=== TEST 5: nor is another method, path, body, or other arguments; but another spelling is
--- request eval
[map(("$_ /a", "$_ /a\na=1&b=2", "$_ /a2\na=1", "$_ /a?x=1\na=1", "$_ /a\na=2"),
     'POST', 'PATCH'),
 "POST /a\nb=2&a=%31", "PATCH /a", "POST /a?x=1\na=%31"]
--- more_headers eval: with(map "action-$_", 1 .. 13)
--- error_code eval: [(200) x 10, (409) x 3]
--- idempotency_status eval: 'NEW ' x 10 . 'SIMILAR ' x 3

=== TEST 6: who is known may change networks and browsers, and his cookies may tick
--- request
POST /who
a=1
--- more_headers eval: [each_of(who => @::same)]
--- error_code: 200 409 409 409
--- idempotency_status: NEW SIMILAR SIMILAR SIMILAR

=== TEST 7: a request without a key is no new key
--- request
POST /keyless
a=1
--- idempotency_status: - -
--- more_headers eval: [$::form, $::form]

=== TEST 8: while the first is being executed another one is similar, its repeat is not
--- init
pending(POST => '/sooner?id=s1&gate=1', key => 's1', body => 'a=1',
        type => 'application/x-www-form-urlencoded');
--- request
POST /sooner?id=s1&gate=1
a=1
--- more_headers eval: with(qw(s2 s1))
--- error_code: 409
--- idempotency_status: SIMILAR IN_PROGRESS

=== TEST 9: the refusal is a problem for programs, which advises no repeat, and a page for people
--- request
POST /refusal
a=1
--- more_headers eval: with(qw(r1 r2), "r3\nAccept: text/html")
--- error_code: 200 409 409
--- response_headers_like eval
['', map "Content-Type: $_", 'application/problem\+json', 'text/html.*']
--- raw_response_headers_unlike: Retry-After
--- response_body_like eval: ['exec', '"status":\s*409', '<html']

=== TEST 10: idempotency_status, idempotency_docs and error_page
--- config
idempotency zone=z;
idempotency_similar reject;
idempotency_content_window 300s;

location / {
    idempotency_status similar=429;
    idempotency_docs https://example.com/docs;
    proxy_pass http://backend;
}
location /error_page { error_page 409 = /similar.html; proxy_pass http://backend; }
location = /similar.html { return 200 "just sent\n"; }
--- request eval: [("POST /status\na=1") x 2, ("POST /error_page\na=1") x 2]
--- more_headers eval: with(map "status-$_", 1 .. 4)
--- error_code: 200 429 200 200
--- response_body_like eval
['exec', '(?s)https://example\.com/docs#similar".*"status":\s*429', 'exec',
 '^just sent$']
--- executions: 2

=== TEST 11: idempotency_identity and idempotency_scope tell contents apart
--- config eval
map <<EOC, qw(identity scope)
location / {
    idempotency zone=z;
    idempotency_similar reject;
    idempotency_content_window 300s;
    idempotency_$_ \$http_x_user;
    proxy_pass http://backend;
}
EOC
--- request
POST /user
a=1
--- more_headers eval
[each_of(user => map "$::form\nX-User: $_", "a\nCookie: s=1", "b\nCookie: s=1",
                     "a\nCookie: s=1")]
--- error_code: 200 200 409
--- idempotency_status: NEW NEW SIMILAR

=== TEST 12: a key in the body makes each body another one, unless it is ignored
--- config
location / {
    idempotency zone=z;
    idempotency_similar reject;
    idempotency_content_window 300s;
    idempotency_key $idempotency_field_tok;
    proxy_pass http://backend;

    location /ignored {
        idempotency_key $idempotency_field_tok;
        idempotency_ignore_fields tok;
        proxy_pass http://backend;
    }
}
--- request eval
[map("POST /field\na=1&tok=$_", 'k', 'l'), map "POST /ignored\na=1&tok=$_", qw(m n m)]
--- more_headers eval: $::form
--- error_code: 200 200 200 409 200
--- idempotency_status: NEW NEW NEW SIMILAR REPLAYED

=== TEST 13: a content token is no key either, but a second key is
--- config
location / {
    idempotency zone=z;
    idempotency_similar reject;
    idempotency_content_window 300s;
    idempotency_missing_key content;
    proxy_pass http://backend;
}
--- request
POST /content
a=1
--- more_headers eval: [$::form, $::form, @{with(qw(c1 c2))}]
--- error_code: 200 200 200 409
--- idempotency_status: NEW REPLAYED NEW SIMILAR

=== TEST 14: what was not executed was not seen: an outcome that does not bind, no upstream, a release, a retry
--- config
idempotency zone=z;
idempotency_similar reject;
idempotency_content_window 300s;

location / { proxy_pass http://backend; }
location /keep { idempotency_keep 2xx; proxy_pass http://backend; }
location /retry { idempotency_in_doubt retry; proxy_pass http://backend; }
location /down { proxy_pass http://$TEST_NGINX_DEAD; }
location /balanced { proxy_pass http://$TEST_NGINX_DEAD; error_page 502 = @up; }
location @up { proxy_pass http://backend; }
--- request eval
[map(("POST $_") x 3, '/?h=X-Accel-Idempotency:%20release', '/keep?status=500',
     '/retry?close=1', '/down')]
--- more_headers eval: with(map(("$_-k", "$_-k", "$_-l"), qw(release keep retry down)))
--- error_code: 200 200 200 500 500 500 502 502 502 502 502 502
--- idempotency_status: NEW

=== TEST 15: what may have been executed was seen: in doubt, an error, at another upstream
--- request eval: [map(("POST $_") x 2, '/?close=1', '/?status=500', '/balanced')]
--- more_headers eval: with(map "seen-$_", 1 .. 6)
--- error_code: 502 409 500 409 200 409
--- idempotency_status: NEW SIMILAR NEW SIMILAR NEW SIMILAR

=== TEST 16: which of them was: of the similar, each as it went
--- config
idempotency zone=z;
idempotency_similar warn;
idempotency_content_window 300s;

location / { proxy_pass http://$http_x_to; }
location /reject { idempotency_similar reject; proxy_pass http://$http_x_to; }
--- request eval: [map "POST $_", ('/second') x 4, ('/first') x 3, ('/reject') x 3]
--- more_headers eval
my ($up, $down) = map "X-To: $_", @ENV{qw(TEST_NGINX_BACKEND TEST_NGINX_DEAD)};
[each_of(to => $down, $up, $up), "Idempotency-Key: to-0\n$up",
 each_of(first => $up, $down, $up), each_of(reject => $up, $down, $up)]
--- error_code: 502 200 200 200 200 502 200 200 409 409
--- idempotency_status: NEW NEW SIMILAR SIMILAR NEW SIMILAR SIMILAR NEW SIMILAR SIMILAR

=== TEST 17: in a dry run a similar one is executed and recorded
--- config eval
map <<EOC, qw(warn reject)
location / {
    idempotency zone=z;
    idempotency_scope $_;
    idempotency_similar $_;
    idempotency_content_window 300s;
    idempotency_dry_run on;
    proxy_pass http://backend;
}
EOC
--- request: POST /dry
--- more_headers eval: with(map "dry-$_", qw(k l l k))
--- idempotency_status: NEW_DRY_RUN SIMILAR_DRY_RUN REPLAYED_DRY_RUN REPLAYED_DRY_RUN
--- executions: 4
