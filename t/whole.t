#!/usr/bin/perl

# A response is recorded as the client got it, whole, or not at all: then a
# repeat is refused, and gets neither a part of it nor more than it had.

use lib 't/lib';
use Idempotency;

my $lua = has_module('ngx_http_lua_module') && has_module('ndk_http_module');
my $echo = has_module('ngx_http_echo_module');
my $index = has_module('ngx_http_fancyindex_module');
my $addition = has_directive('add_before_body /x;');
my $slice = has_directive('slice 1k;');

my $file = join '', map { chr(65 + $_ % 26) x 1000 . "\n" } 0 .. 299;

my $n = nginx(
    modules => [$lua ? qw(ndk_http_module ngx_http_lua_module) : (),
                $echo ? 'ngx_http_echo_module' : (),
                $index ? 'ngx_http_fancyindex_module' : ()],
    files => { map({ ("html/files/$_" => substr $file, 0, $_) }
                   0, 1, 511, 512, 4096, 4097, 70000, 300000),
               'html/dir/a file' => 'a', 'html/parts/head' => '<html>head',
               'html/parts/foot' => 'foot</html>' },
    http => <<'EOC',
    idempotency zone=z;
    idempotency_in_progress reject;
EOC
    server => <<'EOC'
    root $TEST_NGINX_ROOT/html;
    proxy_http_version 1.1;
    proxy_set_header Connection "";

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /parts/ { }

    location /passed {
        proxy_pass_header Server;
        proxy_pass_header Date;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    # unaligned, and with a buffer that is smaller than the file
    location /files/ { internal; directio 1; }
    location /aligned/ {
        internal;
        alias $TEST_NGINX_ROOT/html/files/;
        directio 1;
        directio_alignment 4k;
        output_buffers 1 128k;
    }

    # as a client of this same server
    location /outer/ {
        idempotency_scope outer;
        idempotency_hide_header X-Nothing;
        proxy_pass http://127.0.0.1:$TEST_NGINX_PORT/inner/;
    }
EOC
    . ($lua ? <<'EOC' : '')
    location /lua {
        content_by_lua_block {
            ngx.header["Server"] = nil
            ngx.header["Date"] = "x"
            ngx.header["Date"] = nil
            ngx.say("x")
        }
    }
EOC
    . ($slice ? <<'EOC' : '')
    location /sliced {
        idempotency_methods GET POST;
        slice 1k;
        proxy_set_header Range $slice_range;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
EOC
    . ($echo ? <<'EOC' : '')
    location /echo/location { echo a; echo_location /parts/head; echo b; }
    location /echo/async {
        echo a;
        echo_location_async /parts/head;
        echo_location_async /parts/foot;
        echo b;
    }
    location /echo/first { echo_location_async /parts/head; }
    location /echo/upstream {
        echo a;
        echo_subrequest_async POST /part -q 'id=e-$arg_id&body=slow&delay=50';
        echo b;
    }
    location /echo/empty { echo a; echo_location /files-none; echo b; }
    location /files-none { return 204; }
    location /echo/plain { echo a; echo_flush; echo b; }
    location /echo/around {
        echo_before_body before;
        echo_after_body after;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
EOC
    . ($index ? <<'EOC' : '')
    location /dir/ {
        idempotency_methods GET POST;
        fancyindex on;
        location /dir/plain { alias $TEST_NGINX_ROOT/html/dir; fancyindex on; }
        location /dir/both {
            alias $TEST_NGINX_ROOT/html/dir;
            fancyindex on;
            fancyindex_header /parts/head;
            fancyindex_footer /parts/foot;
        }
    }
EOC
    . ($addition ? <<'EOC' : '')
    location /added {
        addition_types *;
        add_before_body /parts/head;
        add_after_body /parts/foot;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
    location /included {
        ssi on;
        ssi_types *;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
    location /part { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /redirected { rewrite ^ /part last; }
EOC
);

my $key = 0;

sub twice {
    my ($method, $uri, %o) = @_;

    my $k = $o{key} // 'k' . ++$key;

    return map { $n->request($method, $uri, key => $k, %o) } 1, 2;
}

sub replayed {
    my ($name, @m) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my @r = twice(@m);
    same_replay(@r, $name);

    return $r[0];
}

sub refused {
    my ($name, $like, @m) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my @r = twice(@m);
    is($r[0]{status}, 200, "$name: passes");
    like($r[0]{body}, $like, "$name: whole");
    is($r[1]{status}, 409, "$name: not replayed");
    like($r[1]{body}, qr/not_kept/, "$name: as it is not kept");

    return $r[0];
}


# --- lines that are not sent ------------------------------------------------

for my $at ('/passed', $lua ? '/lua' : ()) {
    my @r = twice(POST => $at, body => '');

    ok(!$r[0]->has('Server') && !$r[0]->has('Date'), "$at: has neither");
    ok($r[1]->replayed, "$at: replayed");
    ok(!$r[1]->has($_), "$at: the replay has no $_ either") for qw(Server Date);
}

{
    my @r = twice(POST => '/passed?h=Server:%20theirs', body => '');
    is($r[1]->header('Server'), 'theirs', 'one of two: is replayed');
    ok(!$r[1]->has('Date'), 'one of two: and the other still is not there');
}


# --- files that are read past the cache -------------------------------------

for my $at ('/files', '/aligned') {
    for my $size (0, 1, 511, 512, 4096, 4097, 70000, 300000) {
        my $r = replayed("directio, $at/$size", POST =>
                         "/x?h=X-Accel-Redirect:%20$at/$size", body => '');

        ok($r->{body} eq substr($file, 0, $size), "directio, $at/$size: it is");
    }
}


# --- a replay of a replay ---------------------------------------------------

{
    my @m = (key => 'row', body => 'b', headers => ['Cookie: me=1']);

    # the inner nginx has it already, the outer has not
    $n->post('/inner/x?id=row', @m, host => '127.0.0.1:' . $n->port);
    my @r = map { $n->post('/outer/x?id=row', @m) } 1 .. 3;

    is($_->{status}, 200, 'two in a row: an answer') for @r;
    is($_->header('Idempotent-Replayed'), 'true', 'two in a row: marked once')
        for @r;
    is(executions('row'), 1, 'two in a row: executed once');
}


# --- what is sent from elsewhere --------------------------------------------

SKIP: {
    skip 'no ngx_http_slice_module in this nginx', 1 unless $slice;

    # the backend knows no ranges: it is asked for one all the same
    my @r = twice(GET => '/sliced?status=206&size=1000'
                         . '&h=Content-Range:%20bytes%200-999/1000');
    is($r[0]{status}, 200, 'slice: a whole response of parts');
    is($r[1]{status}, 409, 'slice: no part is replayed');
    like($r[1]{body}, qr/not_kept/, 'slice: as it is not kept');
}

SKIP: {
    skip 'no ngx_http_echo_module for this nginx', 1 unless $echo;

    refused('echo_location', qr/^a\n<html>headb\n\z/, POST => '/echo/location',
            body => '');
    refused('echo_location_async', qr/^a\n<html>headfoot<\/html>b\n\z/,
            POST => '/echo/async', body => '');
    refused('echo_location_async alone', qr/^<html>head\z/,
            POST => '/echo/first', body => '');
    refused('echo_subrequest_async of an upstream', qr/^a\nslowb\n\z/,
            POST => '/echo/upstream?id=up', body => '');

    ok($n->log =~ /output of a subrequest/, 'the log says why');

    my $r = replayed('echo, nothing from elsewhere', POST => '/echo/plain',
                     body => '');
    is($r->{body}, "a\nb\n", 'echo, nothing from elsewhere: passes');

    $r = replayed('echo, nothing comes from elsewhere', POST => '/echo/empty',
                  body => '');
    is($r->{body}, "a\nb\n", 'echo, nothing comes from elsewhere: passes');

    $r = replayed('echo_before_body, echo_after_body',
                  POST => '/echo/around?body=-', body => '');
    is($r->{body}, "before\n-after\n", 'echo_before_body: acts');
}

SKIP: {
    skip 'no ngx_http_fancyindex_module for this nginx', 1 unless $index;

    my $r = replayed('fancyindex', GET => '/dir/');
    like($r->{body}, qr/a file/, 'fancyindex: an index');
    refused('fancyindex with header and footer',
            qr/^<html>head.*a file.*foot<\/html>\z/s, GET => '/dir/both/');
}

# what filters below us send, they send again

SKIP: {
    skip 'no ngx_http_addition_module in this nginx', 1 unless $addition;

    my $r = replayed('addition', POST => '/added?body=-', body => '');
    is($r->{body}, '<html>head-foot</html>', 'addition: it acts');

    for my $part ('/part', '/redirected') {
        my $include = join '-', map {
            "%3C!--%23%20include%20virtual=%22$part?noexec=1%26delay=$_"
            . "%26body=$_%22%20--%3E"
        } 1, 30, 2, 20, 3;
        $r = replayed("ssi of $part", POST => "/included?body=[$include]",
                      body => '');
        is($r->{body}, '[1-30-2-20-3]', "ssi of $part: they act");
    }
}

ok($n->stop, 'nginx stops in good order');

done_testing();
