#!/usr/bin/perl

# Access control of other modules, wherever it stands in the access phase: what
# it sets counts, whom it turns away is asked for no body and claims nothing.
# Lua moves its handler behind all others at its first request.

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;

my $lua = has_module('ngx_http_lua_module') && has_module('ndk_http_module');
my $js = has_module('ngx_http_js_module');
my $waf = has_module('ngx_http_modsecurity_module');

plan(skip_all => 'none of the modules is here for this nginx')
    unless $lua || $js || $waf;

my %order = (before => 'modules', after => 'modules_after');


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

        location /lua/identity {
            idempotency_identity $tenant;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }
        location /lua/map {
            idempotency_identity $mapped;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }
        location /lua/header {
            idempotency_identity $http_x_tenant;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }
        location /lua/scope {
            idempotency_scope $tenant;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }
        location /lua/key {
            idempotency_key $tenant;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }
        location /lua/bypass {
            idempotency_bypass $skip;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }
    }

    location /exec {
        access_by_lua_block { ngx.exec("/elsewhere", ngx.var.args) }
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

    # $who posts to $uri with a key; what the module said of it
    my $as = sub {
        my ($who, $uri, $key, %o) = @_;
        my $r = $n->post("$uri?id=$key", key => $key, body => 'b', %o,
                         headers => [$who ? "X-Token: $who" : (),
                                     @{$o{headers} // []}]);
        return wantarray ? ($r, "$r->{status} " . ($r->header('X-Status') // '-'))
                         : "$r->{status} " . ($r->header('X-Status') // '-');
    };

    # the first request of all moves the handler
    $as->('first', '/lua/', "first-$order");

    for my $what (qw(identity map header)) {
        my $k = "$what-$order";
        my $uri = "/lua/$what";

        is(scalar $as->('anna', $uri, $k), '200 NEW', "$k: executed");
        is(scalar $as->('anna', $uri, $k), '200 REPLAYED', "$k: replayed");

        my ($r, $told) = $as->('bert', $uri, $k);
        is($told, '409 CONFLICT', "$k: not for somebody else");
        ok(!$r->replayed && $r->{body} !~ /exec/, "$k: and nothing of it");
        is(scalar $as->(undef, $uri, $k), '403 -', "$k: not for a stranger");
        is(executions($k), 1, "$k: executed once");
    }

    {
        my $k = "scope-$order";
        is(scalar $as->($_, '/lua/scope', $k), '200 NEW', "$k: new for $_")
            for qw(anna bert);
        is(scalar $as->($_, '/lua/scope', $k), '200 REPLAYED',
           "$k: a replay for $_") for qw(anna bert);
        is(executions($k), 2, "$k: each has an execution");

        $k = "key-$order";
        is(scalar $as->($_, '/lua/key', $k), '200 NEW', "$k: each has its own")
            for "anna-$order", "bert-$order";
        is(scalar $as->("anna-$order", '/lua/key', $k), '200 REPLAYED',
           "$k: a replay");

        # a predicate that was asked too early would have kept its value
        $k = "bypass-$order";
        is(scalar $as->('anna', '/lua/bypass', $k), '200 NEW', "$k: protected");
        is(scalar $as->('nobody', '/lua/bypass', $k), '200 BYPASS',
           "$k: bypassed, as Lua decides");
        is(executions($k), 2, "$k: which executes");
    }

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
        is($r->{status}, $who ? 200 : 403, "$k: its answer");
        is(scalar @{$r->{interim}}, $who ? 1 : 0, "$k: asked for its body?");
        is(executions($k), $who ? 1 : 0, "$k: executed?");
    }

    {
        my $k = "exec-$order";
        my @r = map { scalar $as->('anna', '/exec', $k) } 1, 2;
        is("@r", '200 NEW 200 REPLAYED', "$k: protected where it leads");
        like(last_request($k), qr{^POST /elsewhere}, "$k: there it is");
        is(executions($k), 1, "$k: executed once");

        # what Lua says itself is access control, and is said each time
        $k = "said-$order";
        for (1, 2) {
            my $r = $n->post('/said', key => $k, body => 'b');
            is("$r->{status} $r->{body}", "202 Lua\n", "$k: as Lua says");
            ok(!$r->replayed, "$k: no replay");
        }

        $k = "any-$order";
        is(scalar $as->('bad', '/any', $k), '403 -', "$k: turned away");
        is(scalar $as->('good', '/any', $k), '200 NEW', "$k: claimed nothing");
        is(scalar $as->('good', '/any', $k), '200 REPLAYED', "$k: replayed");
        is(scalar $as->('bad', '/any', $k), '403 -', "$k: still turned away");
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
        my @m = ("/lua/identity?id=$k", key => $k, body => $body,
                 headers => ['X-Token: anna'],
                 chunked => [substr($body, 0, 5), substr $body, 5]);
        my ($first, $again) = map { $n->post(@m) } 1, 2;

        ok(!$first->replayed && $again->replayed, "$k: replayed");
        is($again->{body}, $first->{body}, "$k: the same");
        is(executions($k), 1, "$k: executed once");
        is(length((split /\n\n/, last_request($k), 2)[1]), $size,
           "$k: with its body");
    }

    ok($n->stop, "Lua $order: nginx stops in good order");
}

SKIP: { skip 'no ngx_http_lua_module for this nginx', 1 unless $lua; pass('Lua') }


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
        export default {tenant, let_in};
EOC
                  http => 'js_import app from $TEST_NGINX_ROOT/app.js;'
                          . 'js_set $asks app.tenant;',
                  server => <<'EOC' . ($access ? <<'EOC2' : ''));
    idempotency zone=z;
    set $tenant "";
    location /set {
        idempotency_identity $asks;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
EOC
    location /access {
        js_access app.let_in;
        idempotency_identity $tenant;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
EOC2

    for my $at ('set', $access ? 'access' : ()) {
        my $ask = sub {
            my $r = $n->post("/$at?id=js-$at", key => "js-$at", body => 'b',
                             headers => ["X-Token: $_[0]"]);
            return $r->{status} . ($r->replayed ? ' again' : '');
        };

        is(join(', ', map { $ask->($_) } qw(anna.1 anna.2 bert.1)),
           '200, 200 again, 409', "njs, js_$at: who asks");
        is(executions("js-$at"), 1, "njs, js_$at: executed once");
    }

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
    ';
    idempotency zone=z;
    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
EOC

        for my $evil (['X-Evil: 1', 'a=1'], [undef, 'a=1&evil=1']) {
            my $k = "waf-$order-" . ($evil->[0] ? 'header' : 'body');
            my $ask = sub {
                my ($header, $body) = @_;
                my $r = $n->post("/x?id=$k", key => $k, body => $body,
                    type => 'application/x-www-form-urlencoded',
                    headers => [$header // ()]);
                return $r->{status} . ($r->replayed ? ' again' : '');
            };

            is($ask->(@$evil), 403, "$k: turned away");
            is($ask->(undef, 'a=1'), 200, "$k: it claimed nothing");
            is($ask->(undef, 'a=1'), '200 again', "$k: a good one is replayed");
            is($ask->(@$evil), 403, "$k: not to an evil one");
            is(executions($k), 1, "$k: executed once");
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
