# docs/directives.md, "idempotency_keep", and rows 1, 5, 6 and 9 of the table in
# docs/guarantees.md, "Which outcome is recorded": which responses bind a token,
# and which release it. The key is the URI, so that each request has its own.

use lib 't/lib';
use Test::Nginx::Idempotency 'no_plan';

sub twice { return [ map { ($_) x 2 } @_ ] }

# a response with each of these statuses, twice
sub with { my $uri = shift; return twice(map "POST $uri?status=$_", @_) }

# what the upstream says of it, and a header line behind that
sub says {
    my $word = shift;
    return map "POST $_&h=X-Accel-Idempotency:%20$word&h=X-After:%20yes", @_;
}

our $after = 'h=Retry-After:%20120';
our @final = (200, 201, 202, 204, 206, 301, 302, 303, 307, 400, 402, 404, 405,
              406, 408 .. 410, 412, 418, 420, 422 .. 424, 426, 428, 431, 451,
              500 .. 504, 511, 599);

run_tests();

__DATA__

=== TEST 1: a final response binds the token, success or failure
--- config
idempotency zone=z;
idempotency_key $request_uri;

location / { proxy_pass http://backend; }
location /default { idempotency_keep default; proxy_pass http://backend; }

location /fastcgi {
    fastcgi_param REQUEST_METHOD $request_method;
    fastcgi_param REQUEST_URI $request_uri;
    fastcgi_pass $TEST_NGINX_FASTCGI;
}
--- request eval: with('/', @::final)
--- error_code eval: twice(@::final)
--- idempotency_status eval: 'NEW REPLAYED ' x @::final
--- executions eval: scalar @::final

=== TEST 2: one that says that nothing was carried out releases it
--- request eval: with('/', 401, 403, 407, 419, 421, 425, 429)
--- error_code: 401 401 403 403 407 407 419 419 421 421 425 425 429 429
--- idempotency_status: NEW
--- executions: 14

=== TEST 3: so do 409 and 503 with Retry-After, and no other status
--- request eval: with('/', map "$_&$::after", 401, 409, 429, 503, 200, 202, 301, 404, 500, 502, 504)
--- error_code eval: twice(401, 409, 429, 503, 200, 202, 301, 404, 500, 502, 504)
--- idempotency_status eval: 'NEW NEW ' x 4 . 'NEW REPLAYED ' x 7
--- executions: 15

=== TEST 4: Retry-After may be a date, in any case, and is that header only
--- request eval
with('/', '503&h=retry-after:%20Fri,%2031%20Dec%202027%2023:59:59%20GMT',
     map "$_&h=X-Retry-After:%20120&h=Retry-Afte:%20120", 409, 503)
--- error_code: 503 503 409 409 503 503
--- idempotency_status: NEW NEW NEW REPLAYED NEW REPLAYED

=== TEST 5: a 503 with Retry-After that comes from a cache or a proxy binds
--- request eval
with('/', map("503&$::after&h=$_", 'Via:%201.1%20cache', 'x-varnish:%20123', 'Age:%200'),
     "409&$::after&h=Via:%201.1%20proxy")
--- error_code: 503 503 503 503 503 503 409 409
--- idempotency_status: NEW REPLAYED NEW REPLAYED NEW REPLAYED NEW NEW

=== TEST 6: idempotency_keep default says the same
--- request eval: with('/default', 200, 403, 500)
--- error_code: 200 200 403 403 500 500
--- idempotency_status: NEW REPLAYED NEW NEW NEW REPLAYED

=== TEST 7: a status by FastCGI counts as any
--- request eval: with('/fastcgi', 401, 429, "503&$::after", 404, 503, "503&$::after&h=Via:%201.1%20x")
--- error_code eval: twice(401, 429, 503, 404, 503, 503)
--- idempotency_status eval: 'NEW NEW ' x 3 . 'NEW REPLAYED ' x 3

=== TEST 8: what nginx made itself binds nothing, whatever idempotency_keep says
--- user_files
>>> file
a file
>>> directory/file
a file
>>> sorry.html
sorry
--- config
idempotency zone=z;
idempotency_key $request_uri;

location / { root html; }
location /any/ { idempotency_keep any; alias html/; }
location /2xx/ { idempotency_keep 2xx; alias html/; }
location /404/ { idempotency_keep 404; alias html/; }

location /page/ { error_page 404 =200 /sorry; alias html/; }
location /file/ { error_page 404 405 =200 /sorry.html; alias html/; }
location /named/ { error_page 404 =201 @sorry; alias html/; }
location /other/ { error_page 404 =302 http://elsewhere/; alias html/; }
location = /sorry { return 200 sorry; }
location @sorry { return 200 sorry; }
--- request eval
twice(map("POST $_", '/file', '/none', '/directory/', '/directory'),
      map "POST /$_/none", qw(any 2xx 404 page file named other))
--- error_code eval: twice(405, 404, 403, 301, 404, 404, 404, 200, 200, 201, 302)
--- idempotency_status: NEW

=== TEST 9: ... nor what error_page made of it where such pages are recursive
--- config
recursive_error_pages on;
error_page 404 = /sorry;

location / { idempotency zone=z; idempotency_key $request_uri; alias html/; }
location = /sorry { return 200 sorry; }
--- request eval: twice('POST /none')
--- error_code: 200
--- response_body: sorry
--- idempotency_status: NEW

=== TEST 10: ... and what an upstream was asked for first, or a content handler is there for, does
--- http_config
proxy_cache_path $TEST_NGINX_SERVER_ROOT/own_cache keys_zone=cache:1m;
--- user_files
>>> file
a file
--- config
idempotency zone=z;
idempotency_key $request_uri;

location /proxied { proxy_pass http://backend; }
location /fallback/ { error_page 404 = @app; alias html/; }
location @app { proxy_pass http://backend; }
location /missing/ { internal; alias html/; }
location /mirrored/ { mirror /mirror; alias html/; }
location = /mirror { internal; proxy_pass http://backend/mirror; }
location /cached {
    proxy_cache cache;
    proxy_cache_methods POST;
    proxy_cache_key cached;
    proxy_cache_valid any 1h;
    proxy_pass http://backend;
}
location /intercepted {
    proxy_intercept_errors on;
    error_page 404 /none;
    proxy_pass http://backend;
}
--- request eval
twice(map "POST /$_", 'proxied?status=404', 'proxied?h=X-Accel-Redirect:%20/missing/none',
                      'fallback/none?status=404', 'mirrored/none', 'cached?status=404&a', 'cached?status=404&b',
                      'intercepted?status=404')
--- error_code: 404
--- idempotency_status eval: 'NEW REPLAYED ' x 7
--- executions: 6

=== TEST 11: ... and so does a file that is there
--- user_files
>>> file
a file
>>> dir/index.html
an index
--- config
location / {
    idempotency zone=z;
    idempotency_methods GET;
    idempotency_key $request_uri;
}
--- request eval: twice('GET /file', 'GET /dir/', 'GET /none')
--- error_code: 200 200 200 200 404 404
--- idempotency_status: NEW REPLAYED NEW REPLAYED NEW NEW

=== TEST 41: ... but not what nginx says of it instead: 304, 412 and 416
--- user_files
>>> file 202001010000
a file
--- config
location / {
    idempotency zone=z;
    idempotency_methods GET;
    idempotency_key $http_x_key;
}
--- request eval
[('GET /file') x 6]
--- more_headers eval
[map { ("X-Key: $_") x 2 } "1\nIf-None-Match: \"5e0be100-7\"",
     "2\nIf-Match: \"other\"", "3\nRange: bytes=100-"]
--- error_code: 304 304 412 412 416 416
--- idempotency_status: NEW NEW NEW NEW NEW NEW

=== TEST 12: WebDAV's answers are of one who may have changed files
--- skip_eval: 1: !Idempotency::has_directive('dav_methods PUT;')
--- config
idempotency zone=z;
idempotency_methods PUT MKCOL DELETE;
idempotency_key "$request_method $request_uri";
location / { }
location /dav/ { dav_methods PUT MKCOL; create_full_put_path on; }
--- request eval: twice("PUT /dav/a\nbody", 'MKCOL /dav/none/c/', 'DELETE /dav/none', 'PUT /none', 'DELETE /none')
--- error_code: 201 201 409 409 405 405 405 405 405 405
--- idempotency_status: NEW REPLAYED NEW REPLAYED NEW NEW NEW NEW NEW NEW

=== TEST 13: idempotency_keep any
--- config
idempotency zone=z;
idempotency_key $request_uri;

location /any { idempotency_keep any; proxy_pass http://backend; }
location /2xx { idempotency_keep 2xx; proxy_pass http://backend; }
location /codes { idempotency_keep 200 201 404; proxy_pass http://backend; }
location /mixed { idempotency_keep 2xx 4xx 503; proxy_pass http://backend; }

location /free {
    idempotency_key $http_idempotency_key;
    idempotency_keep 2xx;
    proxy_pass http://backend;
}
--- request eval
with('/any', 200, 303, 401, 403, 404, 407, 421, 425, 429, 500, map "$_&$::after", 401, 403, 409, 429, 503)
--- error_code eval: twice(200, 303, 401, 403, 404, 407, 421, 425, 429, 500, 401, 403, 409, 429, 503)
--- idempotency_status eval: 'NEW REPLAYED ' x 15
--- executions: 15

=== TEST 14: idempotency_keep 2xx
--- request eval: with('/2xx', 200, 201, 204, 206, 299, 300, 302, 303, 400, 404, 409, 429, 500, 503)
--- error_code eval: twice(200, 201, 204, 206, 299, 300, 302, 303, 400, 404, 409, 429, 500, 503)
--- idempotency_status eval: 'NEW REPLAYED ' x 5 . 'NEW NEW ' x 9
--- executions: 23

=== TEST 15: idempotency_keep with codes
--- request eval: with('/codes', 200, 201, 404, 202, 204, 303, 400, 403, 500)
--- error_code eval: twice(200, 201, 404, 202, 204, 303, 400, 403, 500)
--- idempotency_status eval: 'NEW REPLAYED ' x 3 . 'NEW NEW ' x 6

=== TEST 16: idempotency_keep with codes and classes
--- request eval: with('/mixed', 200, 204, 400, 404, 499, 503, 303, 500, 502, 504)
--- error_code eval: twice(200, 204, 400, 404, 499, 503, 303, 500, 502, 504)
--- idempotency_status eval: 'NEW REPLAYED ' x 6 . 'NEW NEW ' x 4

=== TEST 17: what binds nothing goes out as it is, and the token is free for anything
--- more_headers: Idempotency-Key: free
--- request eval
["POST /free?status=500&h=X-A:%20b\none", "POST /free?status=201\nanother",
 "POST /free?status=500&h=X-A:%20b\none", "POST /free?status=201\nanother"]
--- error_code: 500 201 409 201
--- response_headers eval: ['X-A: b', '', '', '']
--- response_body_like eval: ["\\Aexec=1 id=/free\n\\z", "exec=2", 'conflict', "exec=2"]
--- idempotency_status: NEW NEW CONFLICT REPLAYED

=== TEST 18: the upstream's status counts, not that of an error page in its place
--- config
idempotency zone=z;
idempotency_key $request_uri;
proxy_intercept_errors on;
error_page 429 503 =200 /sorry;
error_page 404 =429 /sorry;
error_page 500 =403 /sorry;

location / { proxy_pass http://backend; }
location /2xx { idempotency_keep 2xx; proxy_pass http://backend; }
location = /sorry { internal; return 200 sorry; }
--- request eval
[@{with('/page', 429, "503&$::after", "503&$::after&h=Age:%201", 503, 404, 500)},
 @{with('/2xx', 503, 404)}]
--- error_code: 200 200 200 200 200 200 200 200 429 429 403 403 200 200 429 429
--- response_body: sorry
--- idempotency_status eval: 'NEW NEW ' x 2 . 'NEW REPLAYED ' x 4 . 'NEW NEW ' x 2
--- executions: 12

=== TEST 19: X-Accel-Idempotency: release goes before idempotency_keep, and nobody sees it
--- config
idempotency zone=z;
idempotency_key $request_uri;

location / { proxy_pass http://backend; }
location /2xx { idempotency_keep 2xx; proxy_pass http://backend; }

location /fastcgi {
    fastcgi_param REQUEST_METHOD $request_method;
    fastcgi_param REQUEST_URI $request_uri;
    fastcgi_pass $TEST_NGINX_FASTCGI;
}

location /bypass { idempotency_bypass 1; proxy_pass http://backend; }
location /malformed { idempotency_key '"$uri'; proxy_pass http://backend; }
location /none { idempotency_key $arg_key; proxy_pass http://backend; }
--- request eval
twice(says('release', qw(/?a /?status=500 /2xx?a /fastcgi?a)), says('RELEASE', '/?a'))
--- error_code: 200 200 500 500 200 200 200 200 200 200
--- response_headers eval: "! X-Accel-Idempotency\nX-After: yes"
--- idempotency_status: NEW
--- executions: 10

=== TEST 20: X-Accel-Idempotency: keep goes before idempotency_keep
--- request eval: twice(says('keep', qw(/?a /2xx?status=500 /fastcgi?a)))
--- error_code: 200 200 500 500 200 200
--- response_headers eval: "! X-Accel-Idempotency\nX-After: yes"
--- idempotency_status eval: 'NEW REPLAYED ' x 3
--- executions: 3

=== TEST 21: X-Accel-Idempotency: other words say nothing
--- request eval: twice(says('perhaps', '/?a'), says('released', '/?a'), says('kept', '/2xx?status=500'))
--- error_code: 200 200 200 200 500 500
--- response_headers eval: "! X-Accel-Idempotency\nX-After: yes"
--- idempotency_status: NEW REPLAYED NEW REPLAYED NEW NEW

=== TEST 22: X-Accel-Idempotency is hidden where nothing is recorded, too
--- request eval: [map "$_?h=X-Accel-Idempotency:%20keep", 'GET /', map "POST /$_", qw(none bypass malformed)]
--- response_headers: ! X-Accel-Idempotency
--- idempotency_status: - - BYPASS MALFORMED

=== TEST 40: X-Accel-Idempotency: a client's own line says nothing
--- request eval: twice('POST /?client')
--- more_headers eval: [ ("Idempotency-Key: client\nX-Accel-Idempotency: release") x 2 ]
--- error_code: 200
--- idempotency_status: NEW REPLAYED

=== TEST 23: X-Accel-Idempotency is hidden where a protected request was sent on before its key was looked for
--- config
location / {
    satisfy any;
    allow all;
    idempotency zone=z;
    try_files /none @off;
}

location @off { proxy_pass http://backend; }
--- request: POST /?h=X-Accel-Idempotency:%20keep
--- error_code: 200
--- response_headers: ! X-Accel-Idempotency
--- idempotency_status: -

=== TEST 20: idempotency_keep adds, and with "!" takes away, in their order
--- config
idempotency zone=z;
idempotency_key $request_uri;

location /minus { idempotency_keep default !5xx; proxy_pass http://backend; }
location /begins { idempotency_keep !5xx !404; proxy_pass http://backend; }
location /any { idempotency_keep any !5xx !404; proxy_pass http://backend; }
location /back { idempotency_keep default !5xx 502 5xx !503 504; proxy_pass http://backend; }
location /nothing { idempotency_keep 4xx !404 2xx !2xx 201; proxy_pass http://backend; }
location /transient { idempotency_keep default !500 !503; proxy_pass http://backend; }
--- request eval
with('/minus', 200, 303, 404, 500, 502, 503, 504, 401, 429, "503&$::after&h=Via:%201.1%20x")
--- error_code eval: twice(200, 303, 404, 500, 502, 503, 504, 401, 429, 503)
--- idempotency_status eval: 'NEW REPLAYED ' x 3 . 'NEW NEW ' x 7

=== TEST 21: a list that begins with "!" begins with default
--- request eval: with('/begins', 200, 302, 400, 404, 500, 503, 401, 429, "409&$::after", 409)
--- error_code eval: twice(200, 302, 400, 404, 500, 503, 401, 429, 409, 409)
--- idempotency_status eval: 'NEW REPLAYED ' x 3 . 'NEW NEW ' x 6 . 'NEW REPLAYED'

=== TEST 22: any, but some
--- request eval: with('/any', 200, 401, 429, "409&$::after", 404, 500, 503)
--- error_code eval: twice(200, 401, 429, 409, 404, 500, 503)
--- idempotency_status eval: 'NEW REPLAYED ' x 4 . 'NEW NEW ' x 3

=== TEST 23: what comes later overrides, and so it does a condition of the default
--- request eval: with('/back', 500, 502, "503&h=Via:%201.1%20x", 504, 401, 404)
--- error_code eval: twice(500, 502, 503, 504, 401, 404)
--- idempotency_status eval: 'NEW REPLAYED ' x 2 . 'NEW NEW ' . 'NEW REPLAYED ' . 'NEW NEW ' . 'NEW REPLAYED'

=== TEST 24: one that begins with a code begins with nothing
--- request eval: with('/nothing', 401, 429, 400, 201, 404, 200, 204, 302, 500)
--- error_code eval: twice(401, 429, 400, 201, 404, 200, 204, 302, 500)
--- idempotency_status eval: 'NEW REPLAYED ' x 4 . 'NEW NEW ' x 5

=== TEST 25: all but two
--- request eval: with('/transient', 200, 404, 502, 504, 500, 503)
--- error_code eval: twice(200, 404, 502, 504, 500, 503)
--- idempotency_status eval: 'NEW REPLAYED ' x 4 . 'NEW NEW ' x 2

=== TEST 26: a code that is named is kept with Retry-After, and so it is over gRPC's word
--- config
idempotency zone=z;
idempotency_key $request_uri;

location / { idempotency_keep default 429 503; proxy_pass http://backend; }
location /grpc { proxy_pass http://backend; }
location /named { idempotency_keep default 200; proxy_pass http://backend; }
location /minus { idempotency_keep default !5xx; proxy_pass http://backend; }
--- request eval
[map @$_, with('/', 429, "503&$::after", 401), with('/grpc', '200&h=grpc-status:%2014'),
          with('/named', '200&h=grpc-status:%2014'), with('/minus', '200&h=grpc-status:%2014')]
--- error_code eval: twice(429, 503, 401, 200, 200, 200)
--- idempotency_status eval: 'NEW REPLAYED ' x 2 . 'NEW NEW ' x 2 . 'NEW REPLAYED NEW NEW'

=== TEST 27: no 4xx binds a token of content, nor one of a form's field: the form is corrected, and sent again
--- config
idempotency zone=z;
idempotency_ignore_fields _token;

location /content { idempotency_missing_key content; proxy_pass http://backend; }

location /field {
    idempotency_key $http_idempotency_key $idempotency_field_submission;
    proxy_pass http://backend;
}

location /mapped { idempotency_key $mapped; proxy_pass http://backend; }

location /joined {
    idempotency_key $http_idempotency_key$idempotency_field_submission;
    proxy_pass http://backend;
}

location /named {
    idempotency_missing_key content;
    idempotency_keep default 422;
    proxy_pass http://backend;
}

location /all {
    idempotency_missing_key content;
    idempotency_keep 4xx;
    proxy_pass http://backend;
}
--- http_config
map $http_idempotency_key $mapped {
    "" $idempotency_field_submission;
    default $http_idempotency_key;
}
--- request eval
[map { my $at = $_; map({ ("POST /$at?status=$_\nsubmission=$at-$_&_token=1") x 2 }
                        400, 404, 408, 419, 422) } qw(content field mapped)]
--- more_headers: Content-Type: application/x-www-form-urlencoded
--- error_code eval: [(map { ($_) x 2 } 400, 404, 408, 419, 422) x 3]
--- idempotency_status: NEW
--- executions: 30

=== TEST 28: ... in multipart as well; all else binds: a field of JSON, the header, also through a map (even if the form has the field), or beside an empty field
--- request eval
[map({ ("POST /field?status=422&a=$_->[0]\n$_->[1]") x 2 }
     ['part', "--b\r\nContent-Disposition: form-data; name=submission\r\n\r\npart\r\n--b--\r\n"],
     ['json', '{"submission":"json"}'], ['head', 'x=1']),
 map({ ("POST /$_->[0]?status=402\nsubmission=$_->[1]&x=$_->[0]") x 2 } ['mapped', ''], ['mapped', 'other'], ['joined', '']),
 map { ("POST /$_\nsubmission=$_") x 2 } 'content?status=500', 'field?status=500', 'content?status=303',
       'named?status=422', 'named?status=404', 'all?status=404']
--- more_headers eval
my $form = 'Content-Type: application/x-www-form-urlencoded';
[('Content-Type: multipart/form-data; boundary=b') x 2, ('Content-Type: application/json') x 2,
 ("$form\nIdempotency-Key: head") x 2, ("$form\nIdempotency-Key: mapped") x 2,
 ("$form\nIdempotency-Key: mapped, too") x 2, ("$form\nIdempotency-Key: joined") x 2, ($form) x 12]
--- error_code: 422 422 422 422 422 422 402 402 402 402 402 402 500 500 500 500 303 303 422 422 404 404 404 404
--- idempotency_status eval: 'NEW NEW ' . 'NEW REPLAYED ' x 9 . 'NEW NEW NEW REPLAYED'
