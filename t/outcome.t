# docs/guarantees.md, "Which outcome is recorded": what becomes of a token when
# there is no whole response, each row by what really happens. What a response's
# status says is in keep.t; who waits meanwhile, in release.t. The key is the
# URI, so that each request has its own.

use lib 't/lib';
use Test::Nginx::Idempotency 'no_plan';
use Idempotency ();
use Stress ();

our $lua = Idempotency::has_module('ngx_http_lua_module');
our $ndk = Idempotency::has_module('ndk_http_module');

# connecting hangs there
BEGIN { $ENV{TEST_NGINX_STUCK} = '127.0.0.1:' . Stress::stuck_port() }

# the upstream's response, in the place of which nginx sends what is there
sub accel {
    my ($at, @to) = @_;
    return map "POST ${at}h=X-Accel-Redirect:%20" . s{([?=&%])}{sprintf "%%%02X", ord $1}ger, @to;
}

# each twice, with a body
sub twice { return [ map { my $request = "$_\nb"; ($request, $request) } @_ ] }

# ways to give no response header
our $raw = 'raw=HTTP/1.1%20200%20OK%0D%0A';
our @silent = ('close=1', 'rst=1', "$raw%01bad:%201%0D%0A%0D%0A",
               "${raw}X:%20" . 'y' x 6000 . '%0D%0A%0D%0A', "${raw}X:");

# for the first, the beginning of the body; for the next, what became of it
our $not_kept = '"[^"]*not_kept".*\b200\b';
sub pattern { return Idempotency::pattern(@_) }

# a configuration for each kind of upstream that this nginx has
sub to_each {
    my ($settings) = @_;
    my %scheme = (proxy => 'http://', grpc => 'grpc://');

    return [ map { my $name = $_; 'location /x { ' . $settings =~ s/NAME/$name/r
                                  . "${name}_pass " . ($scheme{$name} // '') . 'backend; }' }
             grep Idempotency::has_directive("${_}_next_upstream error;"), qw(proxy fastcgi scgi uwsgi grpc) ];
}

run_tests();

__DATA__

=== TEST 1: nothing was sent to any upstream: the token is released, a retry may find another one
--- http_config
upstream down { server $TEST_NGINX_DEAD down; }
server { listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1; access_log off; return 200 plain; }
--- config
idempotency zone=z;
idempotency_key $request_uri;
proxy_connect_timeout 500ms;

location / { proxy_pass http://$http_x_to; }
location /2xx { idempotency_keep 2xx; proxy_pass http://$http_x_to; }
location /retry { idempotency_in_doubt retry; proxy_pass http://$http_x_to; }
location /tls { proxy_pass https://127.0.0.1:$TEST_NGINX_RAND_PORT_1; }
location /fastcgi { fastcgi_pass $TEST_NGINX_DEAD; }
location /resolver { resolver 127.0.0.1:$TEST_NGINX_RAND_PORT_2 ipv6=off; resolver_timeout 200ms;
                     proxy_pass http://$http_x_to; }
--- request eval: twice(map "POST /$_", qw(refused 2xx retry stuck down unknown resolver))
--- more_headers eval
[map { ("X-To: $_", 'X-To: backend') } ($ENV{TEST_NGINX_DEAD}) x 3, $ENV{TEST_NGINX_STUCK}, 'down',
                                       ('no.such.host.invalid') x 2]
--- error_code: 502 200 502 200 502 200 504 200 502 200 502 200 502 200
--- idempotency_status: NEW
--- executions: 7

=== TEST 2: so it is by a TLS handshake that fails, and by FastCGI
--- request eval: twice('POST /tls', 'POST /fastcgi')
--- error_code: 502
--- idempotency_status: NEW

=== TEST 3: it was sent, and there came no whole header: what the client got is the outcome
--- http_config
upstream refused_first { server $TEST_NGINX_DEAD max_fails=0; server $TEST_NGINX_BACKEND max_fails=0 backup; }
upstream sent_first { server $TEST_NGINX_BACKEND max_fails=0; server $TEST_NGINX_DEAD max_fails=0 backup; }
--- config
idempotency zone=z;
idempotency_methods POST PUT;
idempotency_key $request_uri;
idempotency_key_max_length 8000;
fastcgi_param REQUEST_METHOD $request_method;
fastcgi_param REQUEST_URI $request_uri;

location / { proxy_pass http://$arg_to; }
location /2xx { idempotency_keep 2xx; proxy_pass http://$arg_to; }
location /retry { idempotency_in_doubt retry; proxy_pass http://$arg_to; }
location /fastcgi { fastcgi_pass $TEST_NGINX_FASTCGI; }

location /late {
    proxy_read_timeout 100ms;
    proxy_pass http://$arg_to;

    location /late/2xx { idempotency_keep 2xx; proxy_pass http://$arg_to; }
    location /late/retry { idempotency_in_doubt retry; proxy_pass http://$arg_to; }
    location /late/fastcgi { fastcgi_read_timeout 100ms; fastcgi_pass $TEST_NGINX_FASTCGI; }
}
--- request eval
twice(map({ my $q = $_; map "$_&$q", 'POST /?to=backend', 'POST /?to=refused_first',
                                     'PUT /?to=sent_first', 'POST /2xx?to=backend' } @::silent),
      'POST /fastcgi?close=1', 'POST /fastcgi?rst=1')
--- error_code: 502
--- idempotency_status eval: 'NEW REPLAYED ' x (2 + 4 * @::silent)
--- executions eval: 2 + 4 * @::silent

=== TEST 4: so it is if there came nothing in time
--- request eval
twice('POST /late?to=backend&gate=1', 'POST /late?to=refused_first&gate=1', 'PUT /late?to=sent_first&gate=1',
      'POST /late/2xx?to=backend&gate=1', 'POST /late/fastcgi?gate=1')
--- error_code: 504
--- idempotency_status eval: 'NEW REPLAYED ' x 5
--- executions: 5

=== TEST 5: idempotency_in_doubt retry releases it, and it is executed again
--- request eval: twice((map "POST /retry?to=backend&$_", @::silent), 'POST /late/retry?to=backend&gate=1')
--- error_code eval: [(502) x (2 * @::silent), 504, 504]
--- idempotency_status: NEW
--- executions eval: 2 + 2 * @::silent

=== TEST 6: an answer is an outcome: a 502 where retry is on, or that of another upstream
--- request eval
twice('POST /retry?to=backend&status=502', 'POST /?to=refused_first', 'PUT /?to=refused_first&put=1')
--- error_code: 502 502 200 200 200 200
--- idempotency_status eval: 'NEW REPLAYED ' x 3
--- executions: 3

=== TEST 7: another upstream by error_page: all that were tried count
--- config
location / {
    idempotency zone=z;
    idempotency_key $request_uri;
    error_page 502 = @other;
    proxy_pass http://$http_x_to;
}

location @other { proxy_pass http://$http_x_then; }
--- request eval
twice('POST /other-answers', 'POST /both-refuse', 'POST /other-refuses?close=1', 'POST /other-closes?close=1')
--- more_headers eval
my ($dead, $alive) = ($ENV{TEST_NGINX_DEAD}, 'backend');
[map { ("X-To: $_->[0]\nX-Then: $_->[1]", "X-To: $alive\nX-Then: $alive") }
     [$dead, $alive], [$dead, $dead], [$alive, $dead], [$dead, $alive]]
--- error_code: 200 200 502 200 502 502 502 502
--- idempotency_status: NEW REPLAYED NEW NEW NEW REPLAYED NEW REPLAYED
--- executions: 4

=== TEST 8: an old response of a cache, in place of none, says nothing of the upstream
--- http_config
proxy_cache_path cache keys_zone=cache:1m;
--- config
idempotency zone=z;
idempotency_key $request_uri;
proxy_cache cache; proxy_cache_key stale; proxy_cache_methods POST; proxy_cache_use_stale error timeout;

location / { proxy_pass http://$http_x_to; }

location /stale {
    proxy_read_timeout 100ms;
    proxy_pass http://$http_x_to;

    location /stale/2xx { idempotency_keep 2xx; proxy_pass http://$http_x_to; }
    location /stale/retry { idempotency_in_doubt retry; proxy_pass http://$http_x_to; }
}
--- request eval
['POST /old?body=old&h=X-Accel-Expires:%20@1',
 map { my $q = $_; map { ("POST /stale$_?$q") x 2 } '', '/2xx', '/retry' } qw(gate=1 close=1 rst=1 refused=1)]
--- more_headers eval: [('X-To: backend') x 19, ("X-To: $ENV{TEST_NGINX_DEAD}") x 6]
--- response_body: old
--- idempotency_status eval: 'NEW ' . 'NEW REPLAYED NEW REPLAYED NEW NEW ' x 3 . 'NEW ' x 6
--- executions: 13

=== TEST 9: it broke off in the body: done, but there is no response to give again
--- config
idempotency zone=z;
idempotency_key $request_uri;
proxy_http_version 1.1;

location / { proxy_pass http://backend; }
location /unbuffered { proxy_buffering off; proxy_pass http://backend; }
fastcgi_param REQUEST_METHOD $request_method;
fastcgi_param REQUEST_URI $request_uri;
location /fastcgi { fastcgi_pass $TEST_NGINX_FASTCGI; }
location /fastcgi/unbuffered { fastcgi_buffering off; fastcgi_pass $TEST_NGINX_FASTCGI; }
location /2xx { idempotency_keep 2xx; proxy_pass http://backend; }
location /small { idempotency_max_response 1k; proxy_pass http://backend; }
--- request eval
twice(map("POST /broken?$_ HTTP/1.0", 'size=5000&te=chunked&cut=2000', 'size=5000&te=chunked&cut=2000&rst=1',
          'size=60000&cut=40000', 'size=5000&cut=2000&h=X-Accel-Idempotency:%20keep'),
      (map { my $q = $_; map "POST /fastcgi$_?size=5000&$q HTTP/1.0", '', '/unbuffered' }
          qw(cut=2000 te=close&cut=2000 te=close&cut=0)),
      map { my $q = $_; map "POST $_?size=5000&$q HTTP/1.0", '/broken', '/unbuffered' }
          qw(cut=2000 cut=2000&rst=1 cut=0 cut=4999 te=close&cut=2000&rst=1))
--- response_headers: ! X-Accel-Idempotency
--- response_body_like eval
[('\A.{0,4999}\z', $::not_kept) x 2, '\A.{0,59999}\z', $::not_kept, ('\A.{0,4999}\z', $::not_kept) x 17]
--- idempotency_status eval: 'NEW NOT_KEPT ' x 20
--- executions: 20

=== TEST 10: that is released all the same if its status binds nothing, or the upstream says so
--- request eval
twice(map "POST $_", '/2xx?status=500&size=5000&cut=2000', '/?size=5000&cut=2000&h=X-Accel-Idempotency:%20release')
--- error_code: 500 500 200 200
--- response_headers: ! X-Accel-Idempotency
--- idempotency_status: NEW
--- executions: 4

=== TEST 11: the end of the connection may be that of the response: nobody can tell
--- request eval: twice('POST /close?size=5000&te=close')
--- response_body eval: pattern(5000, 1)
--- idempotency_status: NEW REPLAYED

=== TEST 12: over idempotency_max_response it is passed on whole, and not kept
--- request eval
twice(map "POST /small/$_", qw(length?size=3000 chunks?size=3000&te=chunked close?size=3000&te=close
                               keep?size=3000&h=X-Accel-Idempotency:%20keep))
--- response_headers: ! X-Accel-Idempotency
--- response_body_like eval: [('\A' . quotemeta(pattern(3000, 1)) . '\z', $::not_kept) x 4]
--- idempotency_status eval: 'NEW NOT_KEPT ' x 4
--- executions: 4

=== TEST 13: just below it is kept, and what the upstream releases is released
--- request eval: twice(map "POST /small/$_", qw(below?size=1024 release?size=3000&h=X-Accel-Idempotency:%20release))
--- response_headers: ! X-Accel-Idempotency
--- idempotency_status: NEW REPLAYED NEW NEW
--- executions: 3

=== TEST 14: a body that is too large claims nothing, be it in chunks
--- config
location / { idempotency zone=z; client_max_body_size 1k; proxy_pass http://backend; }
--- request eval
my $body = 'b' x 2000;
["POST /\n$body", "POST /\nb", "POST /\n7d0\r\n$body\r\n0\r\n\r\n", "POST /\n1\r\nb\r\n0\r\n\r\n"]
--- more_headers eval: [("Idempotency-Key: length") x 2, ("Idempotency-Key: chunks\nTransfer-Encoding: chunked") x 2]
--- error_code: 413 200 413 200
--- idempotency_status: - NEW - NEW
--- executions: 2

=== TEST 15: a limit behind the claim, where the upstream sends it to, is an outcome
--- http_config
limit_req_zone $server_name zone=limit:64k rate=1r/m;
--- config
location / { idempotency zone=z; proxy_pass http://backend; }
location /limited { internal; limit_req zone=limit; proxy_pass http://backend; }
--- request: POST /?h=X-Accel-Redirect:%20/limited
--- more_headers eval: ['', ('Idempotency-Key: limited') x 2]
--- error_code: 200 503 503
--- idempotency_status: - NEW REPLAYED
--- executions: 3

=== TEST 16: *_next_upstream non_idempotent has no effect, and is warned of
--- config eval: to_each('idempotency zone=z; NAME_next_upstream error non_idempotent;')
--- request: GET /
--- error_log
"non_idempotent" of *_next_upstream has no effect

=== TEST 17: nobody is warned without it, or where nothing is protected
--- config eval: [map @{to_each($_)}, 'idempotency zone=z;', 'NAME_next_upstream error non_idempotent;']
--- request: GET /
--- no_error_log
[warn]

=== TEST 18: what nginx takes for HTTP/0.9 is passed on, and can't be kept: in doubt
--- config
location / { idempotency zone=z; idempotency_key $request_uri; proxy_pass http://backend; }
--- request eval
twice(map "POST /?raw=$_%0D%0A%0D%0Ab", 'HTTP/1.1%202x0%20OK', 'HTTP/1.1%201000%20OK', 'b')
--- ignore_response
--- idempotency_status: NEW IN_DOUBT NEW IN_DOUBT NEW IN_DOUBT
--- executions: 3

=== TEST 19: what bound the token binds it, whatever is sent instead of it
--- config
idempotency zone=z;
idempotency_key $request_uri;

location / { proxy_pass http://backend; }
location /retry { idempotency_in_doubt retry; proxy_pass http://backend; }
location /storage { internal; proxy_pass http://backend; }
location /dead { internal; proxy_pass http://$TEST_NGINX_DEAD; }
location /error { proxy_intercept_errors on; error_page 500 429 = @busy; proxy_pass http://backend; }
location @busy { rewrite ^ /busy?status=429? break; proxy_pass http://backend; }
--- request eval
twice(accel('/?', map("/storage?status=$_", 403, 429, 200), '/dead', '/storage?close=1', '/storage?size=9&cut=1'),
      accel('/retry?', '/storage?status=401', '/dead', '/storage?h=X-Accel-Idempotency:%20release'), 'POST /error?status=500')
--- error_code: 403 403 429 429 200 200 502 502 502 502 200 409 401 401 502 502 200 200 429 429
--- idempotency_status eval: 'NEW REPLAYED ' x 5 . 'NEW NOT_KEPT ' . 'NEW REPLAYED ' x 4
--- executions: 18

=== TEST 20: what binds none leaves it to the next one
--- request eval
twice('POST /error?status=429', accel('/?status=401&', '/storage?status=403', '/dead'),
      accel('/?h=X-Accel-Idempotency:%20release&', '/dead', '/storage'))
--- error_code: 429 429 403 403 502 502 502 502 200 200
--- idempotency_status eval: 'NEW ' x 8 . 'NEW REPLAYED'
--- executions: 14

=== TEST 21: one that was sent it and did not answer leaves it in doubt, whatever another one says
--- config
idempotency zone=z;
idempotency_key $request_uri;
error_page 502 = @busy;

location / { proxy_pass http://$http_x_to; }
location /retry { idempotency_in_doubt retry; proxy_pass http://$http_x_to; }
location /says { error_page 502 = @says; proxy_pass http://$http_x_to; }
location @busy { rewrite ^ /busy?status=429? break; proxy_pass http://backend; }
location @says { rewrite ^ /says?h=X-Accel-Idempotency:release? break; proxy_pass http://backend; }
--- request eval: twice('POST /?close=1', 'POST /says?close=1', 'POST /retry?close=1', 'POST /?refused=1')
--- more_headers eval: [('X-To: backend') x 6, ("X-To: $ENV{TEST_NGINX_DEAD}") x 2]
--- error_code: 429 429 200 200 429 429 429 429
--- idempotency_status: NEW REPLAYED NEW REPLAYED NEW NEW NEW NEW
--- executions: 10

=== TEST 22: a content handler of another kind is asked, too, first or last; a page is not
--- skip_eval: 1: !$::lua || !$::ndk
--- main_config eval: join '', map "load_module $_;\n", $::ndk, $::lua
--- user_files
>>> sorry
sorry
--- config
idempotency zone=z;
idempotency_key $request_uri;
proxy_intercept_errors on;
error_page 502 429 = @lua;

location / { proxy_pass http://$http_x_to; }
location @lua { content_by_lua_block { ngx.status = ngx.var.arg_lua; ngx.say("Lua") } }
location /page { error_page 502 429 = @return; proxy_pass http://$http_x_to; }
location @return { return 200; }
location /file { error_page 502 429 = /sorry; proxy_pass http://$http_x_to; }
location = /sorry { root html; }
location /first { content_by_lua_block { ngx.exec("/then", ngx.var.args) } }
location /exec { error_page 502 = /first?status=403; proxy_pass http://$http_x_to; }
location /then { error_page 418 /; proxy_pass http://backend; }
--- request eval
twice('POST /dead?lua=200', 'POST /dead?lua=429', 'POST /?lua=202&status=429', 'POST /?lua=429&close=1',
      'POST /page?dead', 'POST /file?dead', 'POST /page?status=429', 'POST /first?status=403', 'POST /first?close=1', 'POST /exec')
--- more_headers eval
my ($dead, $alive) = map "X-To: $_", $ENV{TEST_NGINX_DEAD}, 'backend';
[($dead) x 4, ($alive) x 4, ($dead) x 4, ($alive) x 6, ($dead) x 2]
--- error_code: 200 200 429 429 202 202 429 429 200 200 200 200 200 200 403 403 502 502 403 403
--- idempotency_status: NEW REPLAYED NEW NEW NEW REPLAYED NEW REPLAYED NEW NEW NEW NEW NEW NEW NEW NEW NEW REPLAYED NEW NEW
--- executions: 9

=== TEST 23: idempotency_max_response 0 keeps tokens only, and no header of a response without a body
--- config
location / {
    idempotency zone=z;
    idempotency_key $request_uri;
    idempotency_max_response 0;
    idempotency_replay_cookies always;
    proxy_pass http://backend;
}
--- request eval: twice(map "POST /?h=Set-Cookie:%20a=1&$_", 'body=', 'status=204', 'te=chunked&body=', 'body=b')
--- error_code: 200 409 204 409 200 409 200 409
--- response_headers eval: [('Set-Cookie: a=1', '! Set-Cookie') x 4]
--- idempotency_status eval: 'NEW NOT_KEPT ' x 4
--- executions: 4

=== TEST 24: an answer in the place of which nothing is sent is an outcome, too
--- config
idempotency zone=z;
idempotency_key $request_uri;
proxy_intercept_errors on;
error_page 429 500 502 = @nothing;

location / { proxy_pass http://$http_x_to; }
location /retry { idempotency_in_doubt retry; proxy_pass http://$http_x_to; }
location @nothing { return 444; }
--- request eval
twice(map("POST $_&nothing", map({ ("$_?status=500", "$_?status=429", "$_?close=1",
                                    "$_?status=500&h=X-Accel-Idempotency:%20release") } '/', '/retry'), '/?refused=1'))
--- more_headers eval: [('X-To: backend') x 16, ("X-To: $ENV{TEST_NGINX_DEAD}") x 2]
--- ignore_response
--- idempotency_status eval: 'NEW NOT_KEPT NEW NEW NEW IN_DOUBT NEW NEW NEW NOT_KEPT ' . 'NEW ' x 8
--- executions: 13
