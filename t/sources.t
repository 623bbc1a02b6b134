#!/usr/bin/perl

# The response may come from anywhere in nginx's content phase: an upstream of
# any protocol, its cache, or a handler that answers by itself.

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;
use Stress ();

my $lua = has_module('ngx_http_lua_module') && has_module('ndk_http_module');
my $echo = has_module('ngx_http_echo_module');
my $js = has_module('ngx_http_js_module');
my $dav = has_directive('dav_methods PUT;');

my $cgi = join '', map {
    "PASS_param $_;\n"
} 'REQUEST_METHOD $request_method', 'REQUEST_URI $request_uri',
  'QUERY_STRING $query_string', 'CONTENT_LENGTH $content_length',
  'CONTENT_TYPE $content_type';

sub cgi { (my $s = $cgi) =~ s/PASS/$_[0]/g; $s }

my $n = nginx(workers => 2,
    modules => [$lua ? qw(ndk_http_module ngx_http_lua_module) : (),
                $echo ? 'ngx_http_echo_module' : (),
                $js ? 'ngx_http_js_module' : ()],
    files => { 'static/file' => "static\n", 'app.js' => <<'EOC' },
        function answer(r) {
            r.headersOut['X-From'] = 'njs';
            r.headersOut['Set-Cookie'] = ['a=1', 'b=2'];
            r.return(201, `${r.variables.request_id} ${r.requestText}\n`);
        }
        export default {answer};
EOC
    http => <<'EOC'
    idempotency zone=z;
    idempotency_in_progress reject;
    upstream kept { server $TEST_NGINX_BACKEND; keepalive 4; }
    proxy_cache_path $TEST_NGINX_ROOT/cache keys_zone=cache:1m;
EOC
    . ($lua ? "lua_shared_dict counter 64k;\n" : '')
    . ($js ? "js_import app from \$TEST_NGINX_ROOT/app.js;\n" : ''),
    server => <<'EOC' . cgi('fastcgi') . cgi('uwsgi') . cgi('scgi')
    location /proxy { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /proxy11 {
        proxy_pass http://kept;
        proxy_http_version 1.1;
        proxy_set_header Connection "";
    }
    location /fastcgi { fastcgi_pass $TEST_NGINX_FASTCGI; }
    location /scgi { scgi_pass $TEST_NGINX_SCGI; }
    location /uwsgi { uwsgi_pass $TEST_NGINX_UWSGI; }
    location /variable {
        set $to $TEST_NGINX_BACKEND;
        proxy_pass http://$to;
    }
    location /cached {
        proxy_cache cache;
        proxy_cache_methods POST;
        proxy_cache_key $request_uri;
        proxy_cache_valid any 1h;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
    location /static/ { root $TEST_NGINX_ROOT; }
    location /return { return 200 $request_id; }
EOC
    . ($dav ? <<'EOC' : '')
    location /dav/ {
        idempotency_methods PUT DELETE MKCOL MOVE;
        root $TEST_NGINX_ROOT/html;
        dav_methods PUT DELETE MKCOL MOVE;
        create_full_put_path on;
    }
EOC
    . ($lua ? <<'EOC' : '')
    location /lua {
        content_by_lua_block {
            ngx.req.read_body()
            ngx.header["Set-Cookie"] = {"a=1", "b=2"}
            ngx.header["X-From"] = "Lua"
            ngx.status = 202
            ngx.say(ngx.shared.counter:incr(ngx.var.arg_id, 1, 0), " ",
                    ngx.req.get_body_data())
            ngx.flush(true)
            ngx.print(string.rep("x", 5000))
        }
    }
    location /lua-exit {
        content_by_lua_block {
            ngx.header["X-Count"] = ngx.shared.counter:incr(ngx.var.arg_id, 1, 0)
            ngx.exit(422)
        }
    }
EOC
    . ($echo ? <<'EOC' : '')
    location /echo {
        echo_read_request_body;
        echo "$request_id $request_body";
        echo -n "no end of line";
    }
    location /echo-status { echo_status 404; echo $request_id; }
EOC
    . ($js ? "location /njs { js_content app.answer; }\n" : ''));

my $key = 0;


sub replayed {
    my ($name, $method, $uri, %o) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my @m = (key => $o{key} // 'k' . ++$key, body => 'body',
             headers => ['Cookie: me=1', @{$o{headers} // []}]);
    my $first = $n->request($method, $uri, @m, %o);

    for (1, 2) {
        same_replay($first, $n->request($method, $uri, @m, %o),
                    "$name: replay $_");
    }

    is($n->request($method, $uri, @m, %o, body => 'other')->{status}, 409,
       "$name: a conflict") if !defined $o{body};

    return $first;
}


# --- upstreams --------------------------------------------------------------

for my $source (qw(proxy proxy11 variable fastcgi scgi uwsgi)) {
    my %case = (
        plain   => '',
        created => 'status=201&reason=Made%20It&h=Location:%20/things/1'
                   . '&h=Set-Cookie:%20a=1&h=X-A:%20a&h=Set-Cookie:%20b=2',
        other   => 'status=303&h=Location:%20http://other/y',
        nothing => 'status=204',
        empty   => 'size=0',
        large   => 'size=70001',
        endless => 'size=70001&te=close',
        chunked => 'size=70001&te=chunked',
        bad     => 'status=422&ct=application/json&body=%7B%7D',
        failed  => 'status=500&body=sorry',
    );

    for my $case (sort keys %case) {
        # an upstream that is asked in HTTP/1.0 doesn't answer in chunks
        next if $case eq 'chunked' && $source ne 'proxy11';

        my $k = "$source-$case";
        my $r = replayed($k, 'POST', "/$source?id=$k&$case{$case}",
                         key => $k);

        is($r->{status}, $case{$case} =~ /status=(\d+)/ ? $1 : 200,
           "$k: the status passes");
        like($r->{line}, qr/ 201 Made It$/, "$k: and its reason")
            if $case eq 'created';
        is(length $r->{body}, $1, "$k: all of it")
            if $case{$case} =~ /size=(\d+)/;
        is(executions($k), 1, "$k: executed once");
        is((split /\n\n/, last_request($k), 2)[1], 'body',
           "$k: the upstream got the body");
    }
}

# A client that goes does not stop the operation, whatever the protocol.

for my $source (qw(proxy proxy11 variable fastcgi scgi uwsgi cached)) {
    my $k = "$source-gone";
    my @m = ("/$source?id=$k&gate=1&status=201", key => $k, body => 'b');
    my $c = $n->start(POST => @m);

    held($k);
    $c->reset;

    my $r = $n->post(@m);
    like($r->{body}, qr/in_progress/, "$k: still pending");
    go($k);

    until_true { $r = $n->post(@m); $r->{body} !~ /in_progress/ };
    is($r->{status}, 201, "$k: carried through");
    ok($r->replayed, "$k: and recorded");
    is(executions($k), 1, "$k: executed once");
}

{
    # the cache of nginx answers one execution, the replay another
    my $uri = '/cached?id=cache&size=5000';
    my $r = replayed('a cached response', 'POST', $uri, key => 'cache1');
    ok($r->{body} eq pattern(5000, 1), 'a cached response: passes');

    my $hit = replayed('a response from the cache', 'POST', $uri,
                       key => 'cache2');
    ok($hit->{body} eq pattern(5000, 1), 'a response from the cache: it is');
    is(executions('cache'), 1, 'a response from the cache: asked once');
}


# --- grpc, with trailers ----------------------------------------------------

SKIP: {
    my ($ok) = config_test(module => 0, http =>
        'server { listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1 http2;
         location / { grpc_pass grpc://$TEST_NGINX_BACKEND; } }');

    skip 'nginx without grpc', 1 unless $ok;

    # a second nginx server is the gRPC service: HTTP/2 and trailers before
    # the backend that counts
    my $g = nginx(workers => 2, http => <<'EOC');
        server {
            listen 127.0.0.1:$TEST_NGINX_RAND_PORT_2 http2;
            location / {
                proxy_pass http://$TEST_NGINX_BACKEND;
                add_trailer grpc-status $arg_grpc always;
                add_trailer grpc-message "it is $arg_id" always;
                add_trailer x-many one always;
                add_trailer x-many two always;
            }
        }
        server {
            listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1 http2;
            listen 127.0.0.1:$TEST_NGINX_PORT;
            idempotency zone=z;
            idempotency_in_progress reject;
            location / { grpc_pass grpc://127.0.0.1:$TEST_NGINX_RAND_PORT_2; }
            location /any {
                idempotency_keep any;
                grpc_pass grpc://127.0.0.1:$TEST_NGINX_RAND_PORT_2;
            }
            location /2xx {
                idempotency_keep 2xx;
                grpc_pass grpc://127.0.0.1:$TEST_NGINX_RAND_PORT_2;
            }
        }
EOC

    my $ask = sub {
        my ($k, $query, $body, $at) = @_;

        $at //= '/s';

        return $g->curl('--http2-prior-knowledge', '-H', 'TE: trailers',
                        '-H', 'Content-Type: application/grpc',
                        '-H', "Idempotency-Key: $k", '--data-binary', $body,
                        'http://127.0.0.1:' . $g->port(1) . "$at/M?id=$k&$query");
    };

    # grpc-status counts as a status does: in the trailers, and in the header
    for my $code (0 .. 17) {
        my $released = grep { $code == $_ } 7, 8, 14, 16;

        for (['/s', "grpc=$code", $released], ['/any', "grpc=$code", 0],
             ['/2xx', "grpc=$code", 0],
             ['/s', "grpc=0&h=Grpc-Status:%20$code", $released])
        {
            my ($at, $query, $free) = @$_;
            my $k = "grpc-status$at-$query";
            $k =~ s/\W+/-/g;

            $ask->($k, "$query&ct=application/grpc&te=close&size=30", 'b', $at)
                for 1, 2;
            is(executions($k), $free ? 2 : 1,
               "$k: " . ($free ? 'released' : 'an outcome'));
        }
    }

    for (['grpc', 'grpc=0&ct=application/grpc&te=close&size=300'],
         ['grpc-empty', 'grpc=5&ct=application/grpc&te=close&size=0'],
         ['grpc-large', 'grpc=0&ct=application/grpc&te=close&size=100000'])
    {
        my ($k, $query) = @$_;
        my $first = $ask->($k, $query, 'body');

        is($first->{status}, 200, "$k: passes");
        is(scalar(grep /^grpc-status: \d$/, @{$first->{trailers}},
                  @{$first->{lines}}), 1, "$k: with its status");
        is(scalar(grep /^x-many: /, @{$first->{trailers}},
                  @{$first->{lines}}), 2, "$k: and all trailers");

        for (1, 2) {
            my $again = $ask->($k, $query, 'body');
            same_replay($first, $again, "$k: replay $_");
        }

        my $other = $ask->($k, $query, 'other');
        is($other->{status}, 409, "$k: a conflict");
        is(executions($k), 1, "$k: executed once");
    }

    # Trailers behind a length that was announced. curl looks for none there,
    # so the frames are looked at; nginx writes the same lines the same way.
    for my $size (1, 300, 100000) {
        my $k = "grpc-length-$size";

        my @r = map {
            my $c = HeaderFrames->new($g->port(1));
            my $id = $c->request(POST => "/s/M?id=$k&grpc=0&size=$size",
                                 key => $k, body => 'body');
            my $r = $c->response($id);
            $c->close;
            +{ %$r, blocks => $c->{blocks} // [] };
        } 1 .. 3;

        is($r[0]{status}, 200, "$k: passes");
        is(scalar @{$r[0]{blocks}}, 2, "$k: with trailers");
        is(length $r[0]{body}, $size, "$k: and all of it");

        for (1, 2) {
            ok($r[$_]{ended} && $r[$_]{body} eq $r[0]{body},
               "$k: replay $_, whole");
            is(unpack('H*', $r[$_]{blocks}[1] // ''),
               unpack('H*', $r[0]{blocks}[1] // 'none'),
               "$k: replay $_, with the same trailers");
        }

        is(executions($k), 1, "$k: executed once");
    }

    # and a client that goes
    my @m = ('/s/M?id=grpc-gone&gate=1&grpc=0', key => 'grpc-gone', body => 'b');
    my $c = $g->start(POST => @m);

    held('grpc-gone');
    $c->reset;

    my $r = $g->post(@m);
    like($r->{body}, qr/in_progress/, 'grpc-gone: still pending');
    go('grpc-gone');

    until_true { $r = $g->post(@m); $r->{body} !~ /in_progress/ };
    ok($r->replayed, 'grpc-gone: carried through');
    is(executions('grpc-gone'), 1, 'grpc-gone: executed once');

    ok($g->stop, 'grpc: nginx stops in good order');
}


# --- handlers in the content phase ------------------------------------------

{
    # nginx's own refusal to POST to a file is a final response like any other
    my $r = replayed('POST to a file', 'POST', '/static/file');
    is($r->{status}, 405, 'POST to a file: refused');
}

SKIP: {
    skip 'no ngx_http_dav_module in this nginx', 1 unless $dav;

    my $r = replayed('PUT', 'PUT', '/dav/a/b.txt');
    is($r->{status}, 201, 'PUT: created, and so says the replay');

    $r = replayed('MKCOL', 'MKCOL', '/dav/c/', body => '');
    is($r->{status}, 201, 'MKCOL: created, and so says the replay');

    $r = replayed('DELETE', 'DELETE', '/dav/a/b.txt', body => '');
    is($r->{status}, 204, 'DELETE: deleted, and so says the replay');
    ok(!-e $n->root . '/html/dav/a/b.txt', 'DELETE: it is gone');
}

SKIP: {
    skip 'no ngx_http_lua_module for this nginx', 1 unless $lua;

    my $r = replayed('Lua', 'POST', '/lua?id=lua', key => 'lua');
    is($r->{status}, 202, 'Lua: passes');
    is($r->{body}, "1 body\n" . 'x' x 5000, 'Lua: ran once');
    is($r->header('Set-Cookie'), 'a=1, b=2', 'Lua: cookies');

    $r = replayed('Lua, exit', 'POST', '/lua-exit?id=luae', key => 'luae');
    is($r->{status}, 422, 'Lua, exit: passes');
    is($r->header('X-Count'), 1, 'Lua, exit: ran once');
}

SKIP: {
    skip 'no ngx_http_echo_module for this nginx', 1 unless $echo;

    my $r = replayed('echo', 'POST', '/echo?id=e');
    like($r->{body}, qr/^[0-9a-f]{32} body\nno end of line\z/, 'echo: passes');

    $r = replayed('echo, status', 'POST', '/echo-status');
    is($r->{status}, 404, 'echo, status: passes');
}

SKIP: {
    skip 'no ngx_http_js_module for this nginx', 1 unless $js;

    my $r = replayed('njs', 'POST', '/njs');
    is($r->{status}, 201, 'njs: passes');
    like($r->{body}, qr/^[0-9a-f]{32} body\n\z/, 'njs: ran');
    is($r->header('Set-Cookie'), 'a=1, b=2', 'njs: cookies');
}

# `return` answers before access control: out of reach, see docs/guarantees.md

{
    my @r = map { $n->post('/return', key => 'return', body => '') } 1, 2;
    ok($r[0]{body} ne $r[1]{body}, 'return: not protected');
    ok(!$r[1]->replayed, 'return: no replay');
}

ok($n->stop, 'nginx stops in good order');

done_testing();


# A client that keeps the header blocks it gets, trailers among them.

package HeaderFrames;

BEGIN { our @ISA = 'Stress::H2' }

sub take {
    my ($self, $f) = @_;

    push @{$self->{blocks}}, substr $f, 9
        if unpack('x3C', $f) == Stress::H2::HEADERS;

    return $self->SUPER::take($f);
}
