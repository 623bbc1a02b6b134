# The response may come from anywhere in nginx's content phase: an upstream of any
# protocol, its cache, or a handler that answers by itself.

use lib 't/lib';
use Test::Nginx::Idempotency 'no_plan';
use Digest::SHA qw(sha256_hex);

our %module = map { $_ => Idempotency::has_module("ngx_http_${_}_module") } qw(lua echo js);
our $ndk = Idempotency::has_module('ndk_http_module');
our $dav = Idempotency::has_directive('dav_methods PUT;');

# what the upstream is to answer, and what comes of it

our $plain = "Content-Type: text/plain\r\n";
my $made = 'status=201&reason=Made%20It&h=Location:%20/things/1&h=Set-Cookie:%20a=1'
           . '&h=X-A:%20a&h=Set-Cookie:%20b=2';

our @answers = (
    [ '', '200 OK', $plain ],
    [ $made, '201 Made It', $plain,
      "Location: /things/1\r\nSet-Cookie: a=1\r\nX-A: a\r\nSet-Cookie: b=2\r\n" ],
    [ 'status=303&h=Location:%20http://other/y', '303 See Other', $plain,
      "Location: http://other/y\r\n" ],
    [ 'status=204', '204 No Content' ],
    [ 'size=0', '200 OK', $plain ],
    [ 'size=70001', '200 OK', $plain ],
    [ 'size=70001&te=close', '200 OK', $plain ],
    [ 'status=422&ct=application/json&body=%7B%7D', '422 Status',
      "Content-Type: application/json\r\n" ],
    [ 'status=500&body=sorry', '500 Status', $plain ],
    [ 'sha=1', '200 OK', $plain ],
);

# each from each source, but who is asked in HTTP/1.0 doesn't answer in chunks

our @asked = (map({ my $source = $_; map [ $source, @$_ ], @answers }
                  qw(proxy proxy11 variable fastcgi scgi uwsgi)),
              [ 'proxy11', 'size=70001&te=chunked', '200 OK', $plain ]);

sub body {
    my $n = shift;
    local $_ = $asked[$n][1];

    return /204/ ? '' : /body=(.*)/ ? $1 =~ s/%7B%7D/{}/r
           : /size=(\d+)/ ? Idempotency::pattern($1, 1)
           : /sha/ ? sha256_hex('body') . " 4\n" : "exec=1 id=$n\n";
}

sub head {
    my ($n, $marker) = @_;

    my (undef, $query, $status, $type, $lines) = @{$asked[$n]};

    return "^HTTP/1.1 $status\r\nServer: \\S+\r\nDate: [^\r]+\r\n" . ($type // '')
           . ($query =~ /te=|204/ ? '' : 'Content-Length: ' . length(body($n)) . "\r\n")
           . ($query =~ /te=/ ? "Transfer-Encoding: chunked\r\n" : '')
           . "Connection: close\r\n" . ($lines // '') . "X-Exec: 1\r\n"
           . ($marker // '') . '$';
}

our @replay = ('! Idempotent-Replayed', 'Idempotent-Replayed: true', '! Idempotent-Replayed');

run_tests();

__DATA__

=== TEST 1: an upstream of any protocol: as it answered, and again, line by line and in order
--- http_config
upstream kept { server $TEST_NGINX_BACKEND; keepalive 4; }
--- config eval
'
idempotency zone=z;
location /proxy { proxy_pass http://backend; }
location /proxy11 {
    proxy_pass http://kept;
    proxy_http_version 1.1;
    proxy_set_header Connection "";
}
location /variable { set $to $TEST_NGINX_BACKEND; proxy_pass http://$to; }
' . join '', map { my $p = $_; "location /$p { ${p}_pass \$TEST_NGINX_\U$p\E; }\n", map "${p}_param $_;\n",
                   'REQUEST_METHOD $request_method', 'REQUEST_URI $request_uri',
                   'CONTENT_LENGTH $content_length' } qw(fastcgi scgi uwsgi)
--- request eval
[map { my $n = $_; map "POST /$::asked[$n][0]?id=$n&$::asked[$n][1]\n$_", qw(body body body other) }
 0 .. $#::asked]
--- more_headers eval: [map { ("Cookie: me=1\nIdempotency-Key: $_") x 4 } 0 .. $#::asked]
--- error_code eval: [map { ((split / /, $_->[2])[0]) x 3, 409 } @::asked]
--- raw_response_headers_like eval
[map { (head($_), (head($_, "Idempotent-Replayed: true\r\n")) x 2, '^HTTP/1.1 409') } 0 .. $#::asked]
--- response_body eval: [map { ((body($_)) x 3, qr/conflict/) } 0 .. $#::asked]
--- idempotency_status eval: 'NEW REPLAYED REPLAYED CONFLICT ' x @::asked
--- executions eval: scalar @::asked

=== TEST 2: nginx's cache answers an execution, the record a replay
--- http_config
proxy_cache_path $TEST_NGINX_SERVER_ROOT/a_cache keys_zone=cache:1m;
--- config
idempotency zone=z;
location /cached {
    proxy_cache cache;
    proxy_cache_methods POST;
    proxy_cache_key $request_uri;
    proxy_cache_valid any 1h;
    proxy_pass http://backend;
}
--- request: POST /cached?size=5000
--- more_headers eval: [map "Idempotency-Key: $_", qw(first first second second)]
--- response_body eval: Idempotency::pattern(5000, 1)
--- idempotency_status: NEW REPLAYED NEW REPLAYED
--- executions: 1

=== TEST 3: nginx's own refusal to POST to a file binds nothing
--- config
idempotency zone=z;
location /return { return 200 $request_id; }
--- user_files
>>> file
static
--- request eval: [map "POST /file\n$_", qw(body body other)]
--- more_headers: Idempotency-Key: file
--- error_code: 405
--- response_headers: ! Idempotent-Replayed
--- idempotency_status: NEW

=== TEST 4: `return` answers before access control: out of reach, see docs/guarantees.md
--- request: POST /return
--- more_headers eval: [("Idempotency-Key: return") x 2]
--- response_headers: ! Idempotent-Replayed
--- idempotency_status: -

=== TEST 5: files that are put, made and deleted
--- skip_eval: 1: !$::dav
--- config
idempotency zone=z;
idempotency_methods PUT DELETE MKCOL;
location /dav/ { dav_methods PUT DELETE MKCOL; create_full_put_path on; }
--- request eval
["PUT /dav/a/b.txt\nbody", "PUT /dav/a/b.txt\nbody", "PUT /dav/a/b.txt\nother", 'GET /dav/a/b.txt',
 ('MKCOL /dav/c/') x 2, ('DELETE /dav/a/b.txt') x 2, 'GET /dav/a/b.txt']
--- more_headers eval: [map "Idempotency-Key: $_", qw(put put put get mk mk del del get)]
--- error_code: 201 201 409 200 201 201 204 204 404
--- idempotency_status: NEW REPLAYED CONFLICT - NEW REPLAYED NEW REPLAYED -

=== TEST 6: Lua
--- skip_eval: 1: !$::ndk || !$::module{lua}
--- main_config eval: "load_module $::ndk;\nload_module $::module{lua};\n"
--- http_config
lua_shared_dict counter 64k;
--- config
idempotency zone=z;
location /lua {
    content_by_lua_block {
        ngx.req.read_body()
        ngx.header["Set-Cookie"] = {"a=1", "b=2"}
        ngx.header["X-From"] = "Lua"
        ngx.status = 202
        ngx.say(ngx.shared.counter:incr("lua", 1, 0), " ", ngx.req.get_body_data())
        ngx.flush(true)
        ngx.print(string.rep("x", 5000))
    }
}
location /exit {
    content_by_lua_block {
        ngx.header["X-Count"] = ngx.shared.counter:incr("exit", 1, 0)
        ngx.exit(422)
    }
}
--- request eval: [map { my $uri = $_; map "POST $uri\n$_", qw(body body other) } qw(/lua /exit)]
--- more_headers eval: [map "Cookie: me=1\nIdempotency-Key: $_", ('lua') x 3, ('exit') x 3]
--- error_code: 202 202 409 422 422 409
--- response_headers eval
[map({ "Set-Cookie: a=1, b=2\nX-From: Lua\n$_" } @::replay[0, 1]), $::replay[2],
 map({ "X-Count: 1\n$_" } @::replay[0, 1]), $::replay[2]]
--- response_body eval: [("1 body\n" . 'x' x 5000) x 2, qr/conflict/, ('') x 2, qr/conflict/]
--- idempotency_status eval: 'NEW REPLAYED CONFLICT ' x 2

=== TEST 7: the echo module
--- skip_eval: 1: !$::module{echo}
--- main_config eval: "load_module $::module{echo};\n"
--- config
idempotency zone=z;
location /echo { echo_read_request_body; echo "$request_body"; echo -n "no end of line"; }
location /status { echo_status 404; echo none; }
--- request eval: [map { my $uri = $_; map "POST $uri\n$_", qw(body body other) } qw(/echo /status)]
--- more_headers eval: [map "Idempotency-Key: $_", ('echo') x 3, ('status') x 3]
--- error_code: 200 200 409 404 404 409
--- response_headers eval: [(@::replay) x 2]
--- response_body eval: [("body\nno end of line") x 2, qr/conflict/, ("none\n") x 2, qr/conflict/]
--- idempotency_status eval: 'NEW REPLAYED CONFLICT ' x 2

=== TEST 8: njs
--- skip_eval: 1: !$::module{js}
--- main_config eval: "load_module $::module{js};\n"
--- user_files
>>> app.js
function answer(r) {
    r.headersOut['Set-Cookie'] = ['a=1', 'b=2'];
    r.return(201, `${r.requestText}\n`);
}
export default {answer};
--- http_config
js_import app from $TEST_NGINX_SERVER_ROOT/html/app.js;
--- config
idempotency zone=z;
location /njs { js_content app.answer; }
--- request eval: [map "POST /njs\n$_", qw(body body other)]
--- more_headers eval: "Cookie: me=1\nIdempotency-Key: njs"
--- error_code: 201 201 409
--- response_headers eval: [map({ "Set-Cookie: a=1, b=2\n$_" } @::replay[0, 1]), $::replay[2]]
--- response_body eval: [("body\n") x 2, qr/conflict/]
--- idempotency_status: NEW REPLAYED CONFLICT
