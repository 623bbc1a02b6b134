#!/usr/bin/perl

# Access control of other modules, wherever it stands in the access phase: what
# it sets counts, whom it turns away is asked for no body and claims nothing.
# Lua moves its handler behind all others at its first request. And its balancer.

use lib 't/lib';
use Idempotency;
use Stress;

my $lua = has_module('ngx_http_lua_module') && has_module('ndk_http_module');
my $js = has_module('ngx_http_js_module');
my $waf = has_module('ngx_http_modsecurity_module');

plan(skip_all => 'none of the modules is here for this nginx')
    unless $lua || $js || $waf;

my %order = (before => 'modules', after => 'modules_after');


# What the module, or Lua, said of a response. A refusal has nothing of another.

sub verdict {
    my ($r) = @_;

    return "$r->{status} " . ($r->{status} >= 400 && $r->{body} =~ /exec=/ ? 'leak'
           : $r->header('X-Status') // ($r->{body} =~ /^(Lua)$/ ? $1 : '-'));
}


# These post to URI with one key; what is said of each, and how often that was
# executed.

sub asked {
    my ($n, $uri, $key, $who, $told, $executed) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    is(join(', ', map {
           verdict($n->post("$uri?id=$key", key => $key, body => 'b',
                         headers => [ defined ? "X-Token: $_" : () ]))
       } @$who) . ' ' . executions($key), "$told $executed", $key);
}


# --- Lua --------------------------------------------------------------------

for my $order ($lua ? sort keys %order : ()) {

    my $n = nginx($order{$order} => [qw(ndk_http_module ngx_http_lua_module)],
                  http => <<'EOC', server => <<'EOC2');
    map $tenant $mapped { default "of $tenant"; "" ""; }
    map $who $skip { default 0; nobody 1; }

    init_by_lua_block {
        function capture()
            local r = ngx.location.capture("/sub?" .. ngx.var.args,
                { method = ngx.HTTP_POST, body = "sub" })
            ngx.print(r.status, " ", r.body)
        end
    }
EOC
    idempotency zone=z;
    idempotency_in_progress reject;
    set $tenant "";
    set $who "";
    add_header X-Status $idempotency_status always;

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }

    location /lua/ {
        access_by_lua_block {
            local t = ngx.req.get_headers()["X-Token"]
            if not t then return ngx.exit(403) end
            ngx.var.tenant = t
            ngx.var.who = t
            ngx.req.set_header("X-Tenant", t)
        }

        proxy_pass http://$TEST_NGINX_BACKEND;

        location /lua/identity { idempotency_identity $tenant;
                                 proxy_pass http://$TEST_NGINX_BACKEND; }
        location /lua/map { idempotency_identity $mapped;
                            proxy_pass http://$TEST_NGINX_BACKEND; }
        location /lua/header { idempotency_identity $http_x_tenant;
                               proxy_pass http://$TEST_NGINX_BACKEND; }
        location /lua/scope { idempotency_scope $tenant;
                              proxy_pass http://$TEST_NGINX_BACKEND; }
        location /lua/key { idempotency_key $tenant;
                            proxy_pass http://$TEST_NGINX_BACKEND; }
        location /lua/bypass { idempotency_bypass $skip;
                               proxy_pass http://$TEST_NGINX_BACKEND; }
    }

    location /exec {
        access_by_lua_block { ngx.exec("/elsewhere", ngx.var.args) }
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
    location /moved { idempotency_identity $server_name;
                      error_page 404 = @moved; }
    location @moved {
        access_by_lua_block {
            if ngx.var.http_x_token == "sent" then
                ngx.exec("/elsewhere", ngx.var.args)
            end
        }
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
    location /said {
        access_by_lua_block { ngx.status = 202 ngx.say("Lua") ngx.exit(202) }
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
    location /any {
        satisfy any;
        deny all;
        access_by_lua_block {
            if ngx.var.http_x_token == "good" then return ngx.exit(ngx.OK) end
            return ngx.exit(403)
        }
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /capture { content_by_lua_block { capture() } }
    location /capture/off {
        idempotency off;
        content_by_lua_block { capture() }
    }
EOC2

    # the first request of all moves the handler
    asked($n, '/lua/', "first-$order", [qw(first)], '200 NEW', 1);

    for (map({ [ "/lua/$_", [qw(anna anna bert), undef],
                 '200 NEW, 200 REPLAYED, 409 CONFLICT, 403 -', 1 ] }
             qw(identity map header)),
         ['/lua/scope', [qw(anna bert anna bert)],
          '200 NEW, 200 NEW, 200 REPLAYED, 200 REPLAYED', 2],
         ['/lua/key', [qw(anna bert anna)], '200 NEW, 200 NEW, 200 REPLAYED', 2],
         # a predicate that was asked too early would have kept its value
         ['/lua/bypass', [qw(anna nobody)], '200 NEW, 200 BYPASS', 2],
         # protected where it leads
         ['/exec', [qw(anna anna)], '200 NEW, 200 REPLAYED', 1],
         # a replay asks there, and executes nothing where it is sent on
         ['/moved', [qw(anna sent anna)],
          '200 NEW, 409 NOT_KEPT, 200 REPLAYED', 1],
         # what Lua says itself is access control, and is said each time
         ['/said', [qw(anna anna)], '202 Lua, 202 Lua', 0],
         ['/any', [qw(bad good good bad)],
          '403 -, 200 NEW, 200 REPLAYED, 403 -', 1])
    {
        my ($uri, @more) = @$_;
        asked($n, $uri, "$uri-$order", @more);
    }

    like(last_request("/exec-$order"), qr{^POST /elsewhere}, 'where it led to');

    # a body that nobody wants is neither asked for nor read
    for my $who (undef, 'anna') {
        my $k = "upload-$order-" . ($who // 'stranger');
        my $c = $n->connect;

        $c->{method} = 'POST';
        $c->send("POST /lua/identity?id=$k HTTP/1.1\r\nHost: localhost\r\n"
                 . ($who ? "X-Token: $who\r\n" : '')
                 . "Idempotency-Key: $k\r\nContent-Length: 5\r\n"
                 . "Expect: 100-continue\r\n\r\n");
        $c->send('bytes') if $who;

        my $r = $c->response;
        is(join(' ', $r->{status}, scalar @{$r->{interim}}, executions($k)),
           $who ? '200 1 1' : '403 0 0', "$k: its answer, asked for, executed?");
    }

    # a subrequest that looks just like a request to protect
    for my $at ('/capture', '/capture/off') {
        my @r = map { $n->post("$at?id=sub-$order$at", key => "sub$at",
                               body => '')->{body} } 1, 2;

        is_deeply(\@r, [ map { "200 exec=$_ id=sub-$order$at\n" }
                         1, $at =~ /off/ ? 2 : 1 ],
                  "$at-$order: a subrequest is left alone");
    }

    # bodies that take their time, in memory and in a file
    for my $size (10, 100_000) {
        my $k = "body-$order-$size";
        my $body = 'b' x $size;
        my ($first, $again) = map {
            $n->post("/lua/identity?id=$k", key => $k, body => $body,
                     headers => ['X-Token: anna'],
                     chunked => [substr($body, 0, 5), substr $body, 5])
        } 1, 2;

        ok(!$first->replayed && $again->replayed
           && $again->{body} eq $first->{body}, "$k: replayed, the same");
        is(executions($k) . ' ' . length((split /\n\n/, last_request($k), 2)[1]),
           "1 $size", "$k: executed once, with its body");
    }

    ok($n->stop, "Lua $order: nginx stops in good order");
}

SKIP: {
    skip 'no ngx_http_lua_module for this nginx', 1 unless $lua;

    # gRPC's request has an output of its own, each time that it is made
    my $n = nginx(modules => [qw(ndk_http_module ngx_http_lua_module)],
                  http => <<'EOC', server => <<'EOC2');
    upstream lua {
        server 0.0.0.1;
        balancer_by_lua_block {
            local balancer = require "ngx.balancer"
            balancer.set_current_peer("127.0.0.1", tonumber(ngx.var.arg_port))
            balancer.recreate_request()
        }
    }
EOC
    idempotency zone=z;
    add_header X-Status $idempotency_status always;
    location / { proxy_pass http://lua; }
    location /grpc { grpc_pass grpc://lua; }
EOC2

    for (['/', 'http', '200 NEW, 200 REPLAYED'], ['/', 'dead', '502 NEW, 502 NEW'],
         ['/grpc', 'dead', '502 NEW, 502 NEW'])
    {
        my ($at, $to, $told) = @$_;
        my $uri = "$at?port=" . backend($to);

        is(told(map { $n->post($uri, key => "$at-$to", body => 'b') } 1, 2), $told,
           "Lua's balancer makes the request anew: $at, $to");
    }

    ok($n->stop, '... and nginx stops in good order');
}


# --- njs --------------------------------------------------------------------

SKIP: {
    skip 'no ngx_http_js_module for this nginx', 1 unless $js;

    my $access = has_directive_js('js_access app.let_in;');

    my $n = nginx(modules => ['ngx_http_js_module'],
                  files => { 'app.js' => <<'EOC' },
        function tenant(r) { return (r.headersIn['X-Token'] || '').split('.')[0]; }
        function let_in(r) {
            if (!r.headersIn['X-Token']) { r.return(403); return; }
            r.variables.tenant = tenant(r);
        }
        async function pays(r) {
            let x = await r.subrequest('/paid', {method: 'POST', args: r.variables.args});
            r.return(x.status, x.responseText);
        }
        async function tells(r) {
            await r.subrequest('/paid', {method: 'POST', args: r.variables.args});
            r.status = 200;
            r.sendHeader();
            r.send('a'.repeat(5000));
            await r.subrequest('/again');
            r.send('b');
            r.finish();
        }
        export default {tenant, let_in, pays, tells};
EOC
                  http => 'js_import app from $TEST_NGINX_ROOT/app.js;'
                          . 'js_set $asks app.tenant;',
                  server => <<'EOC' . ($access ? <<'EOC2' : ''));
    idempotency zone=z;
    add_header X-Status $idempotency_status always;
    set $tenant "";
    location /set {
        idempotency_identity $asks;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
    listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1 http2;
    location /pays { js_content app.pays; }
    location /tells { js_content app.tells; }
    location /again { proxy_pass http://$TEST_NGINX_BACKEND/?delay=1; }
    location /paid { proxy_pass http://$TEST_NGINX_BACKEND; }
EOC
    location /access {
        js_access app.let_in;
        idempotency_identity $tenant;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
EOC2

    asked($n, "/$_", "js-$_", [qw(anna.1 anna.2 bert.1)],
          '200 NEW, 200 REPLAYED, 409 CONFLICT', 1)
        for 'set', $access ? 'access' : ();

    # a subrequest of an owner goes on, too, when the client leaves

    for my $leaves (qw(reset_stream close)) {
        my @m = (POST => "/pays?id=$leaves&gate=1", key => $leaves, body => 'b');
        my $c = h2($n);
        my $s = $c->request(@m);

        held($leaves);
        $c->$leaves($s);
        select undef, undef, undef, 0.3;
        go($leaves);

        my $r = $n->request(@m);
        is((told($r) =~ s/WAITED/REPLAYED/r) . ' ' . executions($leaves),
           '200 REPLAYED 1', "njs: its subrequest goes on, $leaves");
    }

    # ... and where njs itself finds out that it has left

    my @m = ('/tells?id=tells&gate=1', key => 'tells', body => 'b');
    my $c = $n->start(POST => @m);

    held('tells');
    $c->reset;
    go('tells');
    select undef, undef, undef, 0.3;

    is(told($n->post(@m)) =~ s/WAITED/REPLAYED/r, '200 REPLAYED',
       'njs: the next one begins, too');

    ok($n->stop, 'njs: nginx stops in good order');
}


# --- ModSecurity ------------------------------------------------------------

SKIP: {
    skip 'no ngx_http_modsecurity_module for this nginx', 1 unless $waf;

    for my $order (sort keys %order) {
        my $n = nginx($order{$order} => ['ngx_http_modsecurity_module'],
                      server => <<'EOC');
    modsecurity on;
    modsecurity_rules '
        SecRuleEngine On
        SecRequestBodyAccess On
        SecRule REQUEST_HEADERS:X-Evil "@streq 1" "id:1,phase:1,deny,status:403"
        SecRule ARGS_POST:evil "@streq 1" "id:2,phase:2,deny,status:403"
        SecRule REQUEST_HEADERS:X-Evil "@streq 3" "id:3,phase:3,deny,status:403"
    ';
    idempotency zone=z;
    add_header X-Status $idempotency_status always;
    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /moved { error_page 404 = @moved; }
    location @moved { proxy_pass http://$TEST_NGINX_BACKEND; }
EOC

        my @form = (type => 'application/x-www-form-urlencoded');

        for my $evil ([ body => 'a=1', headers => ['X-Evil: 1'] ],
                      [ body => 'a=1&evil=1' ])
        {
            my $k = "waf-$order-" . @$evil;
            my $good = [ body => 'a=1' ];

            is(join(', ', map {
                   verdict($n->post("/x?id=$k", key => $k, @form, @$_))
               } $evil, $good, $good, $evil) . ' ' . executions($k),
               '403 -, 200 NEW, 200 REPLAYED, 403 - 1', $k);
        }

        # which looks at responses, too
        for my $uri ('/x', '/moved') {
            my $k = "waf-$order$uri";

            is(join(', ', map {
                   verdict($n->post("$uri?id=$k", key => $k, body => 'b',
                                    headers => [ "X-Evil: $_" ]))
               } 0, 3, 0) . ' ' . executions($k),
               '200 NEW, 403 REPLAYED, 200 REPLAYED 1', $k);
        }

        ok($n->stop, "ModSecurity $order: nginx stops in good order");
    }
}

done_testing();


# has_directive() knows no module that is loaded

sub has_directive_js {
    return (config_test(module => 0, modules => ['ngx_http_js_module'],
                        files => { 'app.js' => 'function let_in(r) {}'
                                               . ' export default {let_in};' },
                        http => 'js_import app from $TEST_NGINX_ROOT/app.js;',
                        server => "location / { $_[0] }"))[0];
}
