#!/usr/bin/perl

# SPEC, "What a request gets" 4: the body is read whole, however it comes and
# wherever nginx puts it, digested, and goes on to the upstream unchanged.

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;

use Digest::SHA qw(sha256_hex);

my $lua = has_module('ngx_http_lua_module') && has_module('ndk_http_module');

my %locations = (
    x       => '',
    tiny    => 'client_body_buffer_size 1k;',
    single  => 'client_body_in_single_buffer on; client_body_buffer_size 16k;',
    file    => 'client_body_in_file_only clean;',
    stream  => 'proxy_request_buffering off;',
    limited => 'client_max_body_size 1k;',
    hasty   => 'client_body_timeout 200ms;',
    kept    => 'proxy_set_header X-Length $content_length;',
    $lua ? (lua => 'rewrite_by_lua_block { ngx.req.read_body() }
                    client_body_buffer_size 16k;') : (),
    $lua ? (gone => 'rewrite_by_lua_block { ngx.req.discard_body() }
                     proxy_set_header Content-Length "";') : (),
);

my $locations = join '', map {
    "location /$_ { $locations{$_} proxy_pass http://\$TEST_NGINX_BACKEND;"
    . " proxy_http_version 1.1; proxy_set_header Connection \"\"; }\n"
} sort keys %locations;

sub start {
    my ($http) = @_;

    return nginx(workers => 2,
                 modules => [$lua ? qw(ndk_http_module ngx_http_lua_module)
                                  : ()],
                 http => $http . <<'EOC', server => $locations);
    client_max_body_size 16m;
    idempotency zone=z;
    idempotency_in_progress reject;
EOC
}

my $n = start('');

my $key = 0;

sub upstream_body { return (split /\n\n/, last_request(shift), 2)[1] }


# The first passes with the same bytes, the second is a replay, a third one
# with another byte is a conflict.

sub digested {
    my ($name, $where, $body, %o) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my $k = 'k' . ++$key;
    my $uri = "/$where?id=$k&sha=1";
    my @m = (key => $k, %o, $o{none} ? () : (body => $body));

    my $first = $n->request(POST => $uri, @m);
    is($first->{body}, sha256_hex($body) . ' ' . length($body) . "\n",
       "$name: the upstream gets the same bytes");

    same_replay($first, $n->request(POST => $uri, @m), "$name: replayed");

    # both ways of framing carry the same bytes
    for my $framing ([], [chunked => 1]) {
        my $r = $n->post($uri, key => $k, body => $body, @$framing);
        ok($r->replayed, "$name: replayed to @{[@$framing
                                  ? 'chunked' : 'Content-Length']}");
    }

    my %other = (longer => "${body}x");

    if (length $body) {
        (my $last = $body) =~ s/(.)\z/chr(ord($1) ^ 1)/se;
        (my $head = $body) =~ s/\A(.)/chr(ord($1) ^ 128)/se;
        %other = (%other, 'last byte' => $last, 'first byte' => $head,
                  shorter => substr($body, 0, -1));
    }

    for (sort keys %other) {
        my $r = $n->request(POST => $uri, key => $k, %o,
                            $o{none} ? () : (chunked => undef),
                            body => $other{$_},
                            ref $o{chunked} ? (chunked => [$other{$_}])
                            : $o{chunked} ? (chunked => 1) : ());
        is($r->{status}, 409, "$name: a conflict, $_");
    }

    is(executions($k), 1, "$name: executed once");
    is(upstream_body($k), $body, "$name: it was this body");
}


# --- where it comes from, where it lies -------------------------------------

digested('no body', 'x', '', none => 1);
digested('Content-Length: 0', 'x', '');
digested('chunked, empty', 'x', '', chunked => 1);
digested('binary', 'x', join '', map chr, 0 .. 255);
digested('in three chunks', 'x', 'abcdef', chunked => ['a', 'bcd', 'ef']);
digested('HTTP/1.0', 'x', 'old', version => '1.0');
digested('looks like a request', 'x', "GET /x HTTP/1.1\r\n\r\n");

sub wherever {
    my ($how, @sizes) = @_;

    for my $where (grep { !/limited|hasty|gone/ } sort keys %locations) {
        for my $size (@sizes) {
            for my $chunked (0, 1) {
                my $part = int($size / 3) || 1;

                digested("$size bytes at /$where$how"
                         . ($chunked ? ', chunked' : ''),
                         $where, pattern($size, 1),
                         $chunked ? (chunked => [unpack "(a$part)*",
                                                 pattern($size, 1)]) : ());
            }
        }
    }
}

wherever('', 1, 1023, 1024, 1025, 16384, 70001);

digested('none at /lua', 'lua', '', none => 1) if $lua;

# nginx 1.31.5 may read it before it chooses a location.

SKIP: {
    my $early = 'client_body_early_read 1;';

    skip 'bodies that are read early: no such directive', 1
        unless (config_test(module => 0, http => $early))[0];

    my $late = $n;
    $n = start($early);

    digested('none, read early', 'x', '', none => 1);
    wherever(', read early', 1, 1024, 70001);

    ok($n->stop, 'read early: nginx stops in good order');
    $n = $late;
}

SKIP: {
    skip 'bodies that Lua read before us: no such module', 1 unless $lua;
}

# Somebody discarded the body before us, though its length was announced: no
# worker may look for it where it is not.

SKIP: {
    skip 'a body that Lua discarded: no such module', 1 unless $lua;

    my @workers = $n->workers;

    for my $type ('application/x-www-form-urlencoded', 'application/json',
                  'multipart/form-data; boundary=x', 'text/plain',
                  'application/octet-stream')
    {
        for my $came ('all', 'a part') {
            my $k = 'gone' . ++$key;
            my $name = "discarded before us, $type, $came";

            my @r = map {
                my $c = $n->start(POST => "/gone?id=$k&sha=1", key => $k,
                                  type => $type, close => 1,
                                  headers => [ 'Content-Length: 20000' ]);
                $c->send('a=b' . ($came eq 'all' ? 'b' x 19997 : ''));
                $c->response('POST');
            } 1, 2;

            is($r[0]{body}, sha256_hex('') . " 0\n", "$name: goes without");
            same_replay(@r, "$name: replayed");
            is(executions($k), 1, "$name: executed once");
        }
    }

    is_deeply([$n->workers], \@workers, 'discarded before us: all alive');
}

{
    my $r = $n->post('/kept?id=len', key => 'len', chunked => 1,
                     body => 'abcdef');
    is($r->{status}, 200, 'chunked: passes');
    like(last_request('len'), qr/^X-Length: 6$|^X-Length: $|^(?!X-Length)/m,
         'chunked: the upstream hears nothing wrong about its length');
}

# No byte after the last one counts, and none before it is left out.

{
    my $huge = pattern(8_000_000, 3);
    (my $other = $huge) =~ s/.\z/!/s;

    for my $chunked (0, 1) {
        my @m = (key => "huge-$chunked", chunked => $chunked);
        my $uri = "/x?id=huge-$chunked&sha=1";
        my $r = $n->post($uri, @m, body => $huge);

        is($r->{body}, sha256_hex($huge) . " 8000000\n",
           "8 MB, chunked $chunked: pass");
        ok($n->post($uri, @m, body => $huge)->replayed,
           "8 MB, chunked $chunked: replayed");
        is($n->post($uri, @m, body => $other)->{status}, 409,
           "8 MB, chunked $chunked: the last byte makes a conflict");
        is(executions("huge-$chunked"), 1,
           "8 MB, chunked $chunked: executed once");
    }
}

# byte by byte

{
    my $m = message(POST => '/x?id=slow&sha=1', key => 'slow',
                    body => 'slow body');
    my $c = $n->connect;

    $c->send($_) for $m =~ /\A(.*\r\n\r\n)(.)(.)(.)(.*)\z/s;

    is($c->response('POST')->{body}, sha256_hex('slow body') . " 9\n",
       'in small pieces: passes');
    ok($n->post('/x?id=slow&sha=1', key => 'slow', body => 'slow body')
       ->replayed, 'in small pieces: the same as in one');
}


# --- Expect: 100-continue ---------------------------------------------------

{
    my $c = $n->start(POST => '/x?id=expect&sha=1', key => 'expect',
                      headers => ['Content-Length: 5',
                                  'Expect: 100-continue']);

    like($c->want(sub { $c->{buf} =~ s/\A(.*?\r\n\r\n)//s ? $1 : undef }),
         qr{^HTTP/1.1 100 }, 'Expect: asked for');
    is(executions('expect'), 0, 'Expect: nothing was executed before');

    $c->send('hello');
    my $first = $c->response('POST');
    is($first->{body}, sha256_hex('hello') . " 5\n", 'Expect: passes');

    my $again = $n->post('/x?id=expect&sha=1', key => 'expect',
                         body => 'hello',
                         headers => ['Expect: 100-continue']);
    same_replay($first, $again, 'Expect: replayed');
    is(scalar @{$again->{interim}}, 1, 'Expect: asked for, on a replay too');

    is($n->post('/x?id=expect&sha=1', key => 'expect', body => 'other',
                headers => ['Expect: 100-continue'])->{status}, 409,
       'Expect: a conflict');
}


# --- what nginx refuses leaves no trace -------------------------------------

# The same key is fresh afterwards, and for another body.

sub no_trace {
    my ($name, $k, $where) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    is(executions($k), 0, "$name: nothing was executed");

    my $r = $n->post("/$where?id=$k", key => $k, body => 'small');
    is($r->{status}, 200, "$name: the key is fresh");
    ok(!$r->replayed, "$name: nothing is replayed");
    is(executions($k), 1, "$name: executed now");
    ok($n->post("/$where?id=$k", key => $k, body => 'small')->replayed,
       "$name: and replayed then");
}

{
    my $r = $n->post('/limited?id=cl', key => 'cl', body => 'x' x 1025);
    is($r->{status}, 413, 'too large by Content-Length');
    no_trace('too large by Content-Length', 'cl', 'limited');

    $r = $n->post('/limited?id=te', key => 'te', chunked => ['x' x 1025]);
    is($r->{status}, 413, 'too large by chunks');
    no_trace('too large by chunks', 'te', 'limited');

    $r = $n->post('/limited?id=te2', key => 'te2',
                  chunked => ['x' x 1000, 'x' x 25]);
    is($r->{status}, 413, 'too large by the second chunk');
    no_trace('too large by the second chunk', 'te2', 'limited');

    $r = $n->post('/limited?id=ex', key => 'ex', headers =>
                  ['Content-Length: 1025', 'Expect: 100-continue']);
    is($r->{status}, 413, 'too large, with Expect');
    is(scalar @{$r->{interim}}, 0, 'too large, with Expect: not asked for');
    no_trace('too large, with Expect', 'ex', 'limited');

    # exactly as large as may be
    $r = $n->post('/limited?id=fit&sha=1', key => 'fit', body => 'x' x 1024);
    is($r->{status}, 200, 'as large as may be');

    # a bound key does not get it in
    $r = $n->post('/limited?id=fit&sha=1', key => 'fit', body => 'x' x 1025);
    is($r->{status}, 413, 'too large with a bound key');

    $r = $n->connect;
    $r->send(message(POST => '/x?id=bad', key => 'bad', headers =>
                     ['Transfer-Encoding: chunked']) . "zz\r\n\r\n");
    is($r->response('POST')->{status}, 400, 'no chunk');
    no_trace('no chunk', 'bad', 'x');

    for my $how (qw(close reset)) {
        for my $te ('cl', 'chunked') {
            my $k = "left-$how-$te";
            my $c = $n->start(POST => "/x?id=$k", key => $k, headers =>
                              [$te eq 'cl' ? 'Content-Length: 100'
                                           : 'Transfer-Encoding: chunked']);
            $c->send($te eq 'cl' ? 'half' : "4\r\nhalf\r\n");
            $c->$how;
            no_trace("half a body, $te, and $how", $k, 'x');
        }
    }

    my $c = $n->start(POST => '/hasty?id=late', key => 'late',
                      headers => ['Content-Length: 100']);
    $c->send('half');
    ok($c->closed, 'a body that does not come: nginx hangs up');
    no_trace('a body that does not come', 'late', 'hasty');
}


# --- one connection ---------------------------------------------------------

{
    my $c = $n->connect;

    # in one packet: execution, replay, conflict, another, its replay
    $c->send(join '', map {
        my ($k, $body, @o) = @$_;
        message(POST => "/x?id=$k", key => $k, body => $body, @o);
    } ['p1', 'one'], ['p1', 'one'], ['p1', 'two'],
      ['p2', 'body', chunked => 1], ['p2', 'body'],
      ['p1', 'one', chunked => ['o', 'ne']]);

    my @r = map { $c->response('POST') } 1 .. 6;

    is_deeply([map { $_->{status} } @r], [200, 200, 409, 200, 200, 200],
              'pipelined: one answer to each');
    is_deeply([map { $_->replayed ? 1 : 0 } @r], [0, 1, 0, 0, 1, 1],
              'pipelined: the replays');
    is_deeply([map { $_->{body} } @r[0, 1, 3, 4, 5]],
              ["exec=1 id=p1\n", "exec=1 id=p1\n", "exec=1 id=p2\n",
               "exec=1 id=p2\n", "exec=1 id=p1\n"], 'pipelined: the answers');
    is(executions('p1') + executions('p2'), 2, 'pipelined: executed once each');

    # a refusal and a replay take the whole body off the connection
    my $big = 'b' x 200000;
    $c->send(message(POST => '/tiny?id=p3', key => 'p3', body => $big) x 2
             . message(POST => '/tiny?id=p3', key => 'p3', body => "$big!")
             . message(GET => '/x?id=p4'));
    @r = map { $c->response('POST') } 1 .. 4;

    is_deeply([map { $_->{status} } @r], [200, 200, 409, 200],
              'pipelined, large: one answer to each');
    is($r[3]{body}, "exec=1 id=p4\n", 'pipelined, large: in step');
}


# --- what else the digest covers --------------------------------------------

{
    my @m = (key => 'type', body => '{}');
    my $uri = '/x?id=type';

    $n->post($uri, @m, type => 'application/json');
    ok($n->post($uri, @m, type => 'application/json')->replayed,
       'the same type: replayed');

    for ('text/plain', 'application/octet-stream', undef) {
        is($n->post($uri, @m, type => $_)->{status}, 409,
           'a conflict: type ' . ($_ // 'none'));
    }

    $n->post('/x?id=notype', key => 'notype', body => '{}');
    is($n->post('/x?id=notype', key => 'notype', body => '{}',
                type => 'text/plain')->{status}, 409,
       'a conflict: a type where there was none');
    ok($n->post('/x?id=notype', key => 'notype', body => '{}')->replayed,
       'still no type: replayed');

    # a digest has no seams: the type's end is not the body's beginning
    $n->post('/x?id=seam', key => 'seam', type => 'a/b', body => 'c');
    is($n->post('/x?id=seam', key => 'seam', type => 'a/', body => 'bc')
       ->{status}, 409, 'a conflict: type and body are no one string');
}


# --- HTTP/2 and TLS ---------------------------------------------------------

SKIP: {
    my $dir = $n->root;
    my $made = system("openssl req -x509 -newkey rsa:2048 -nodes -days 2"
                      . " -subj /CN=localhost -keyout $dir/key.pem"
                      . " -out $dir/cert.pem 2>/dev/null") == 0;

    ok($made, 'a certificate was made');

    my ($ok) = config_test(module => 0, http => <<EOC);
        ssl_certificate $dir/cert.pem;
        ssl_certificate_key $dir/key.pem;
        server { listen 127.0.0.1:\$TEST_NGINX_RAND_PORT_1 ssl http2; }
EOC
    skip 'nginx without HTTP/2 or TLS', 1 unless $made && $ok;

    my $t = nginx(workers => 2, http => <<EOC);
        ssl_certificate $dir/cert.pem;
        ssl_certificate_key $dir/key.pem;
        client_max_body_size 1m;
        client_body_buffer_size 16k;
        idempotency zone=z;
        server {
            listen 127.0.0.1:\$TEST_NGINX_PORT;
            listen 127.0.0.1:\$TEST_NGINX_RAND_PORT_1 http2;
            listen 127.0.0.1:\$TEST_NGINX_RAND_PORT_2 ssl http2;
            location / {
                proxy_pass http://\$TEST_NGINX_BACKEND;
                proxy_http_version 1.1;
            }
            location /told {
                proxy_pass http://\$TEST_NGINX_BACKEND;
                add_header X-Told "\$idempotency_status \$idempotency_digest"
                           always;
            }
            location /small {
                client_max_body_size 1k;
                proxy_pass http://\$TEST_NGINX_BACKEND;
            }
        }
EOC

    my %way = (
        'HTTP/1.1 in clear' => [$t->port(0), 'http', '--http1.1'],
        'HTTP/2 in clear'   => [$t->port(1), 'http',
                                '--http2-prior-knowledge'],
        'HTTP/1.1 in TLS'   => [$t->port(2), 'https', '--http1.1', '-k'],
        'HTTP/2 in TLS'     => [$t->port(2), 'https', '--http2', '-k'],
    );

    my $file = "$dir/body";
    my $put = sub {
        open my $f, '>:raw', $file or die;
        print $f $_[0];
        close $f;
    };

    my $ask = sub {
        my ($way, $uri, $k, @body) = @_;
        my ($port, $scheme, @opt) = @{$way{$way}};

        return $t->curl(@opt, '-X', 'POST', '-H', "Idempotency-Key: $k",
                        '-H', 'Content-Type: text/plain',
                        '-H', 'Host: localhost', @body,
                        "$scheme://127.0.0.1:$port$uri");
    };

    for my $way (sort keys %way) {
        for my $size (0, 20000, 300000) {
            for my $length (1, 0) {
                my $name = "$way, $size bytes, "
                           . ($length ? 'length' : 'no length');
                my $k = 'h' . ++$key;
                my $uri = "/x?id=$k&sha=1&size=5000&te=chunked";
                my @body = $length ? ('--data-binary', "\@$file")
                                   : ('-H', 'Expect:', '-T', '-');

                # curl -T - knows no length: it reads standard input
                my $once = sub {
                    my ($bytes, $w) = @_;
                    $put->($bytes);
                    open my $in, '<', $file or die;
                    open my $old, '<&', \*STDIN;
                    open STDIN, '<&', $in;
                    my $r = $ask->($w // $way, $uri, $k, @body);
                    open STDIN, '<&', $old;
                    return $r;
                };

                my $first = $once->(pattern($size, 1));
                is($first->{status}, 200, "$name: passes");
                is(sha256_hex(upstream_body($k)),
                   sha256_hex(pattern($size, 1)),
                   "$name: the upstream gets the same bytes");

                same_replay($first, $once->(pattern($size, 1)),
                            "$name: replayed");

                my $r = $once->(pattern($size, 1) . 'x');
                is($r->{status}, 409, "$name: a conflict");

                # the protocol is no part of it
                for my $other ($length ? sort keys %way : ()) {
                    $r = $once->(pattern($size, 1), $other);
                    ok($r->replayed && $r->{body} eq $first->{body},
                       "$name: replayed over $other");
                }

                is(executions($k), 1, "$name: executed once");
            }
        }

        # limits, and no trace of what they refuse
        my $k = 'h' . ++$key;
        $put->('x' x 1025);

        my $r = $ask->($way, "/small?id=$k", $k, '--data-binary', "\@$file");

        # in HTTP/2 nginx resets the stream behind the answer, and curl may
        # see only that
        like($r->{status}, $way =~ m{HTTP/2} ? qr/^(?:413|0)$/ : qr/^413$/,
             "$way: too large");
        is(executions($k), 0, "$way: too large: nothing was executed");

        $put->('x');
        $r = $ask->($way, "/small?id=$k", $k, '--data-binary', "\@$file");
        is($r->{status}, 200, "$way: too large: the key is fresh");
        ok($r && !$r->replayed, "$way: too large: executed now");
    }

    # what they mean is the same over HTTP/2
    for (['application/x-www-form-urlencoded', 'a=1&b=2', 'b=2&a=1', 'b=2&a=2'],
         ['application/json', '[1]', '[ 1.0 ]', '[2]'],
         ['multipart/form-data; boundary=x',
          map { join '', map({ "--x\r\nContent-Disposition: form-data; "
                               . "name=$_\r\n\r\n1\r\n" } @$_), "--x--\r\n" }
              ['a', 'b'], ['b', 'a'], ['a']])
    {
        my ($type, @bodies) = @$_;

        my @told = map {
            $t->curl('--http2-prior-knowledge', '-H', "Content-Type: $type",
                     '-H', "Idempotency-Key: $type", '--data-binary', $_,
                     'http://127.0.0.1:' . $t->port(1) . '/told')
            ->header('X-Told')
        } @bodies;
        my $digest = (split / /, $told[0])[1];

        is("@told[0, 1]", "NEW $digest REPLAYED $digest", "HTTP/2: $type");
        like($told[2], qr/^CONFLICT (?!$digest)/, 'HTTP/2: ... another body');
        is($t->post('/told', key => "1.1 $type", type => $type,
                    body => $bodies[0])->header('X-Told'), "NEW $digest",
           'HTTP/2: ... its digest is that of HTTP/1.1');
    }

    # a request is the same by HTTP/1.1 and 2, whichever comes first
    for my $first (0, 1) {
        is(join(', ', map {
               my ($two, $cookie, $host) = @$_;
               $t->curl($two ? '--http2-prior-knowledge' : '--http1.1', '-d', 'b',
                        '-H', "Host: $host", '-H', "Idempotency-Key: same$first",
                        '-H', "Cookie: $cookie",
                        'http://127.0.0.1:' . $t->port($two ? 1 : 0) . '/told')
               ->header('X-Told') =~ s/ .*//r
           } [ $first, 'a=1; b=2', 'h2.example' ],
             [ !$first, 'a=1; b=2', 'H2.EXAMPLE:443' ],
             [ !$first, 'a=2; b=2', 'h2.example' ]),
           'NEW, REPLAYED, CONFLICT', 'one request, one host: HTTP/'
           . ($first ? '2, then 1.1' : '1.1, then 2'));
    }

    ok($t->stop, 'HTTP/2 and TLS: nginx stops in good order');
}

ok($n->stop, 'nginx stops in good order');

done_testing();
