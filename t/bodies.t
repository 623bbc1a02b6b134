#!/usr/bin/perl

# docs/requests.md 4: the body is read whole, however it comes, and
# goes on to the upstream unchanged; what comes in pieces, or only in part, and what
# comes by TLS and HTTP/2.  t/normalize.t has the rest.

use lib 't/lib';
use Idempotency;

use Digest::SHA qw(sha256_hex);

my $lua = has_module('ngx_http_lua_module') && has_module('ndk_http_module');

my $n = nginx(workers => 2,
              modules => [$lua ? qw(ndk_http_module ngx_http_lua_module) : ()],
              http => <<'EOC', server => <<'EOD' . ($lua ? <<'EOE' : ''));
    idempotency zone=z;
    proxy_http_version 1.1;
    proxy_set_header Connection "";
EOC
    location /x { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /limited {
        client_max_body_size 1k;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
    location /hasty {
        client_body_timeout 200ms;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
EOD
    location /gone {
        rewrite_by_lua_block { ngx.req.discard_body() }
        proxy_set_header Content-Length "";
        proxy_set_header Connection "";
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
EOE

my $key = 0;

sub upstream_body { return (split /\n\n/, last_request(shift), 2)[1] }


# Somebody discarded the body before us, though its length was announced: no
# worker may look for it where it is not.

SKIP: {
    skip 'a body that Lua discarded: no such module', 1 unless $lua;

    my @workers = $n->workers;

    for my $type ('application/x-www-form-urlencoded', 'application/json',
                  'multipart/form-data; boundary=x', 'text/plain',
                  'application/octet-stream')
    {
        for my $sent ('a=b' . 'b' x 19997, 'a=b') {
            my $k = 'gone' . ++$key;
            my $name = "discarded before us, $type, " . length($sent) . ' bytes';

            my @r = map {
                my $c = $n->start(POST => "/gone?id=$k&sha=1", key => $k,
                                  type => $type, close => 1,
                                  headers => [ 'Content-Length: 20000' ]);
                $c->send($sent);
                $c->response('POST');
            } 1, 2;

            is($r[0]{body}, sha256_hex('') . " 0\n", "$name: goes without");
            same_replay(@r, '... replayed');
            is(executions($k), 1, '... executed once');
        }
    }

    is_deeply([$n->workers], \@workers, 'discarded before us: all alive');
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

# The same key is fresh afterwards, and for another body.  Of clients that leave in
# the middle, t/client.t tells.

sub no_trace {
    my ($name, $k, $where) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    is(executions($k), 0, "$name: nothing was executed");

    my @r = map { $n->post("/$where?id=$k", key => $k, body => 'small') } 1, 2;
    same_replay(@r, '... the key is fresh, and bound then');
    is("$r[0]{status} " . executions($k), '200 1', '... executed now');
}

my $r = $n->post('/limited?id=ex', key => 'ex', headers =>
                 ['Content-Length: 1025', 'Expect: 100-continue']);
is("$r->{status} " . @{$r->{interim}}, '413 0',
   'too large, with Expect: not asked for');
no_trace('too large, with Expect', 'ex', 'limited');

my $late = $n->start(POST => '/hasty?id=late', key => 'late',
                     headers => ['Content-Length: 100']);
$late->send('half');
ok($late->closed, 'a body that does not come: nginx hangs up');
no_trace('a body that does not come', 'late', 'hasty');


# --- HTTP/2 and TLS ---------------------------------------------------------

my $dir = $n->root;
my $made = system("openssl req -x509 -newkey rsa:2048 -nodes -days 2"
                  . " -subj /CN=localhost -keyout $dir/key.pem"
                  . " -out $dir/cert.pem 2>/dev/null") == 0;
my $tls = "ssl_certificate $dir/cert.pem; ssl_certificate_key $dir/key.pem;\n";
my ($ok) = config_test(module => 0, http => $tls
                       . 'server { listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1 ssl http2; }');

ok($made, 'a certificate was made');

SKIP: {
    skip 'nginx without HTTP/2 or TLS', 1 unless $made && $ok;

    my $t = nginx(workers => 2, http => $tls . <<'EOC');
        client_max_body_size 1m;
        client_body_buffer_size 16k;
        idempotency zone=z;
        server {
            listen 127.0.0.1:$TEST_NGINX_PORT;
            listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1 http2;
            listen 127.0.0.1:$TEST_NGINX_RAND_PORT_2 ssl http2;
            location / {
                proxy_pass http://$TEST_NGINX_BACKEND;
                proxy_http_version 1.1;
            }
            location /told {
                proxy_pass http://$TEST_NGINX_BACKEND;
                add_header X-Told "$idempotency_status $idempotency_digest"
                           always;
            }
            location /small {
                client_max_body_size 1k;
                proxy_pass http://$TEST_NGINX_BACKEND;
            }
        }
EOC

    my %way = ('HTTP/1.1 in clear' => [0, 'http', '--http1.1'],
               'HTTP/2 in clear'   => [1, 'http', '--http2-prior-knowledge'],
               'HTTP/1.1 in TLS'   => [2, 'https', '--http1.1', '-k'],
               'HTTP/2 in TLS'     => [2, 'https', '--http2', '-k']);

    # curl -T - knows no length: it reads standard input

    my $ask = sub {
        my ($way, $uri, $k, $bytes, $unknown) = @_;
        my ($port, $scheme, @opt) = @{$way{$way}};

        open my $f, '>:raw', "$dir/body" or die;
        print $f $bytes;
        close $f;

        open my $stdin, '<&', \*STDIN;
        open STDIN, '<', "$dir/body" or die;
        my $r = $t->curl(@opt, '-X', 'POST', '-H', "Idempotency-Key: $k",
                         '-H', 'Content-Type: text/plain', '-H', 'Host: localhost',
                         $unknown ? ('-H', 'Expect:', '-T', '-')
                                  : ('--data-binary', "\@$dir/body"),
                         "$scheme://127.0.0.1:" . $t->port($port) . $uri);
        open STDIN, '<&', $stdin;

        return $r;
    };

    for my $way (sort keys %way) {
        for my $size (0, 20000, 300000) {
            for my $unknown (0, 1) {
                my $name = "$way, $size bytes, " . ($unknown ? 'no length' : 'length');
                my $k = 'h' . ++$key;
                my @m = ("/x?id=$k&sha=1&size=5000&te=chunked", $k);
                my $bytes = pattern($size, 1);
                my $first = $ask->($way, @m, $bytes, $unknown);

                is("$first->{status} " . sha256_hex(upstream_body($k)),
                   '200 ' . sha256_hex($bytes), "$name: passes as it is");
                same_replay($first, $ask->($way, @m, $bytes, $unknown), '... replayed');
                is($ask->($way, @m, $bytes . 'x', $unknown)->{status}, 409,
                   '... a conflict');

                # the protocol is no part of it
                for my $other ($unknown ? () : sort keys %way) {
                    my $r = $ask->($other, @m, $bytes);
                    ok($r->replayed && $r->{body} eq $first->{body},
                       "... replayed over $other");
                }

                is(executions($k), 1, '... executed once');
            }
        }

        # in HTTP/2 nginx resets the stream behind the answer, and curl may see
        # only that

        my @m = ("/small?id=small$way" =~ s/ /-/gr, $way);
        like($ask->($way, @m, 'x' x 1025)->{status},
             $way =~ m{HTTP/2} ? qr/^(?:413|0)$/ : qr/^413$/, "$way: too large");

        my $r = $ask->($way, @m, 'x');
        is("$r->{status} " . ($r->header('X-Exec') // '-') . ($r->replayed ? 1 : ''),
           '200 1', '... leaves no trace: the key is fresh');
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
                     'http://127.0.0.1:' . $t->port(1) . '/told')->header('X-Told')
        } @bodies;
        my $digest = (split / /, $told[0])[1];

        is("@told[0, 1]", "NEW $digest REPLAYED $digest", "HTTP/2: $type");
        like($told[2], qr/^CONFLICT (?!$digest)/, '... another body');
        is($t->post('/told', key => "1.1 $type", type => $type, body => $bodies[0])
           ->header('X-Told'), "NEW $digest", '... its digest is that of HTTP/1.1');
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

# While its upstream takes long, a worker has little of a body that is in a file.

SKIP: {
    skip 'a sanitizer keeps what was freed', 2 if $ENV{ASAN_OPTIONS};

    my $slow = nginx(connections => 512, server => <<'EOC');
        idempotency zone=z;
        client_max_body_size 16m;
        location / { proxy_pass http://$TEST_NGINX_BACKEND; }
EOC

    my $held = sub {
        return slurp('/proc/' . ($slow->workers)[0] . '/status') =~ /^RssAnon:\s+(\d+) kB/m && $1;
    };

    for (['application/json', '{"a":"' . 'b' x 1_040_000 . '"}'],
         ['multipart/form-data; boundary=x',
          join '', map({ "--x\r\nContent-Disposition: form-data; name=$_" . 'a' x 3900 . "\r\n\r\n\r\n" }
                       1 .. 2000), "--x--\r\n"])
    {
        my ($type, $body) = @$_;
        my (@before, @all);

        for my $i (1 .. 12) {
            my $id = length($body) . "-$i";

            push @all, [$id, $slow->start('POST', "/?gate=1&id=$id", key => $id, type => $type,
                                          body => $body)];
            held($id);
            push @before, $held->() if $i == 2;
        }

        cmp_ok(($held->() - $before[0]) / 10, '<', 700,
               "of a body in a file a worker has little, $type");

        go($_->[0]), $_->[1]->response for @all;
    }
}

ok($n->stop, 'nginx stops in good order');

done_testing();
