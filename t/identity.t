# SPEC, "Words" (fingerprint) and idempotency_identity: a token is bound to who
# asked and to what was asked; anything else with the same key is refused and
# learns nothing.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;


# --- a certificate authority and three clients -------------------------------

my $pki = File::Temp->newdir('idempotency-pki-XXXXXX', TMPDIR => 1);

sub openssl {
    my $out = qx(cd $pki && openssl @_ 2>&1);
    die "openssl @_:\n$out" if $?;
}

sub certificate {
    my ($name, $cn, $ca) = @_;

    openssl("req -newkey rsa:2048 -nodes -keyout $name.key -subj /CN=$cn",
            $ca ? "-out $name.csr" : "-x509 -days 30 -out $name.crt");
    openssl("x509 -req -in $name.csr -CA $ca.crt -CAkey $ca.key",
            "-CAcreateserial -days 30 -out $name.crt") if $ca;
    qx(cd $pki && cat $name.crt $name.key > $name.pem);
}

certificate('ca', 'ca');
certificate('server', 'localhost');
certificate('alice', 'alice', 'ca');
certificate('alice2', 'alice', 'ca');
certificate('bob', 'bob', 'ca');
certificate('mallory', 'alice');


my $n = nginx(http => <<"EOC" . <<'EOC', server => <<'EOC');
    ssl_certificate $pki/server.crt;
    ssl_certificate_key $pki/server.key;
    ssl_client_certificate $pki/ca.crt;
EOC
    idempotency zone=z;
    idempotency_scope $server_name$arg_id;

    add_header X-Status $idempotency_status always;

    server {
        listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1 ssl;
        server_name tls;
        ssl_verify_client optional;

        location / { proxy_pass http://$TEST_NGINX_BACKEND; }

        location /named {
            idempotency_identity $http_x_user;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }
    }

    server {
        listen 127.0.0.1:$TEST_NGINX_RAND_PORT_2 ssl;
        server_name tls-any;
        ssl_verify_client optional_no_ca;

        location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    }
EOC
    location / { proxy_pass http://$TEST_NGINX_BACKEND; }

    location /named {
        idempotency_identity $http_x_user;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /composed {
        idempotency_identity "$http_x_user/$http_x_device";
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /small {
        idempotency_max_response 4;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /always {
        idempotency_replay_cookies always;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /never {
        idempotency_replay_cookies never;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /pending {
        idempotency_in_progress reject;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
EOC

my $id = 'case0';

sub told {
    my ($r) = @_;

    return $r ? "$r->{status} " . ($r->header('X-Status') // '-') : 'nothing';
}

# The same request with these headers, one after the other.

sub asked {
    my ($path, @headers) = @_;

    $id++;

    return join ', ', map {
        told($n->post("$path?id=$id", key => 'k', body => 'b', headers => $_))
    } @headers;
}


# --- who asks ----------------------------------------------------------------

my $a = 'Authorization: Bearer alice';
my $b = 'Authorization: Bearer bob';
my $ca = 'Cookie: session=alice';
my $cb = 'Cookie: session=bob';

is(asked('/', [], []), '200 NEW, 200 REPLAYED', 'nobody, twice');
is(asked('/', [$a], [$a]), '200 NEW, 200 REPLAYED', 'Authorization, twice');
is(asked('/', [$a], [$b], [$a]), '200 NEW, 409 CONFLICT, 200 REPLAYED',
   'another Authorization');
is(executions($id), 1, '... does not execute');
is(asked('/', [$a], [], [$a]), '200 NEW, 409 CONFLICT, 200 REPLAYED',
   'none any more');

is(asked('/', [$ca], [$ca]), '200 NEW, 200 REPLAYED', 'Cookie, twice');
is(asked('/', [$ca], [$cb], [$ca]), '200 NEW, 409 CONFLICT, 200 REPLAYED',
   'another Cookie');
is(asked('/', [$ca], [], []), '200 NEW, 409 CONFLICT, 409 CONFLICT',
   'no Cookie any more');
is(asked('/', [$ca, 'Cookie: x=1'], [$ca, 'Cookie: x=2'], [$ca, 'Cookie: x=1']),
   '200 NEW, 409 CONFLICT, 200 REPLAYED',
   'each of several Cookie lines counts');

is(asked('/', [$a, $ca], [$a, $cb], [$a], [$b, $ca]),
   '200 NEW, 200 REPLAYED, 200 REPLAYED, 409 CONFLICT',
   'with Authorization, Cookie does not count');
is(asked('/', [$a], [$ca], [$cb]), '200 NEW, 409 CONFLICT, 409 CONFLICT',
   'a Cookie is no Authorization');
is(asked('/', ['Authorization: same'], ['Cookie: same']),
   '200 NEW, 409 CONFLICT', '... not even with the same value');

is(asked('/named', ['X-User: alice', $a, $ca], ['X-User: alice', $b, $cb],
         ['X-User: alice'], ['X-User: bob', $a, $ca], [$a, $ca]),
   '200 NEW, 200 REPLAYED, 200 REPLAYED, 409 CONFLICT, 409 CONFLICT',
   'idempotency_identity');
is(asked('/composed', ['X-User: alice', 'X-Device: 1'],
         ['X-User: alice', 'X-Device: 1'], ['X-User: alice', 'X-Device: 2']),
   '200 NEW, 200 REPLAYED, 409 CONFLICT', 'a composed idempotency_identity');


# The scheme is not part of the secret.

is(asked('/', ['Authorization: Bearer x'], ['Authorization: bearer x'],
         ['authorization: BEARER   x'], ['Authorization: Bearer X']),
   '200 NEW, 200 REPLAYED, 200 REPLAYED, 409 CONFLICT',
   "a scheme's case does not count, a token's does");
is(asked('/', ['Authorization: Bearer x'], ['Authorization: Token x'],
         ['Authorization: x'], ['Authorization: Bearerx']),
   '200 NEW, 409 CONFLICT, 409 CONFLICT, 409 CONFLICT', 'another scheme');
is(asked('/', ['Authorization: '], [$a]), '200 NEW, 200 REPLAYED',
   'an empty Authorization is none');
is(asked('/', ['Authorization: AbC'], ['Authorization: abc']),
   '200 NEW, 409 CONFLICT', 'a token without a scheme is a token');


# A password that many share tells nobody apart: their sessions do.

for my $basic ('Basic', 'basic', 'BASIC') {
    my $c = 'Authorization: Basic dXNlcjpwYXNz';
    my $again = "Authorization: $basic dXNlcjpwYXNz";

    is(asked('/', [$c, $ca], [$again, $cb], [$again, $ca], [$again]),
       '200 NEW, 409 CONFLICT, 200 REPLAYED, 409 CONFLICT',
       "$basic: one password, two sessions");
    is(asked('/', [$c, $ca], ['Authorization: Basic eDp5', $ca], [$ca],
             [$again, $ca]),
       '200 NEW, 409 CONFLICT, 409 CONFLICT, 200 REPLAYED',
       "$basic: one session, two passwords");
    is(asked('/', [$c], [$again], ['Authorization: Basic eDp5']),
       '200 NEW, 200 REPLAYED, 409 CONFLICT', "$basic: no session");
}

is(asked('/', ['Authorization: Basically x', $ca],
         ['Authorization: Basically x', $cb]),
   '200 NEW, 200 REPLAYED', 'Basically is not Basic');


# API keys likewise.

for my $name (qw(X-Api-Key Api-Key X-Auth-Token X-Access-Token Private-Token
                 X-Goog-Api-Key Ocp-Apim-Subscription-Key
                 X-Shopify-Access-Token))
{
    is(asked('/', ["$name: a"], ["$name: b"], [lc($name) . ': a'], []),
       '200 NEW, 409 CONFLICT, 200 REPLAYED, 409 CONFLICT',
       "$name: two callers, one key");
    is(executions($id), 1, '... executed for the first');
    is(asked('/', ["$name: a", $ca], ["$name: a", $cb], [$ca, "$name: a"],
             ["$name: b", $ca]),
       '200 NEW, 409 CONFLICT, 200 REPLAYED, 409 CONFLICT',
       "$name: counts together with the cookies");
    is(asked('/', [$a, "$name: a"], [$a, "$name: b"]),
       '200 NEW, 200 REPLAYED', "$name: a bearer token stands alone");
    is(asked('/', ["$name: "], ["$name: b"]), '200 NEW, 200 REPLAYED',
       "$name: an empty one is none");
}

is(asked('/', ['X-Api-Key: a'], ['Api-Key: a'], ['X-Auth-Token: a'],
         ['Cookie: X-Api-Key=a']),
   '200 NEW, 409 CONFLICT, 409 CONFLICT, 409 CONFLICT',
   'a key in another header is another');
is(asked('/', ['X-Api-Key: a', 'X-Auth-Token: b'],
         ['X-Auth-Token: b', 'X-Api-Key: a'],
         ['X-Api-Key: b', 'X-Auth-Token: a']),
   '200 NEW, 200 REPLAYED, 409 CONFLICT', 'two keys, in any order');
is(asked('/', ['X-Api-Key: a', 'X-Api-Key: b'], ['X-Api-Key: a'],
         ['X-Api-Key: a', 'X-Api-Key: b']),
   '200 NEW, 409 CONFLICT, 200 REPLAYED', 'each line counts');
is(asked('/', ['X-Other-Key: a'], ['X-Other-Key: b']),
   '200 NEW, 200 REPLAYED', 'no header but those');


# What a stranger learns.

{
    my @o = (key => 'leak', headers => [$a]);
    my $r = $n->post('/leak?id=leak&status=201', @o);
    like($r->{raw}, qr/^X-Exec: 1.*exec=1 id=leak/ms,
         'a response with something in it');

    $r = $n->post('/leak?id=leak&status=201', key => 'leak', headers => [$b]);
    is(told($r), '409 CONFLICT', 'a stranger is refused');
    unlike($r->{raw}, qr/exec|replayed|bearer|\b201 /i,
           '... and gets nothing of it');
}


# --- a token that nobody in particular has bound ------------------------------

# A first POST may begin the session that its retry then has: what was asked
# without an identity is answered whoever asks, but without its cookies.

{
    my $cookie = sub {
        my ($r) = @_;

        return told($r) . ($r->has('Set-Cookie') ? ' cookie' : '')
    };

    my $ask = sub {
        my ($path, @headers) = @_;

        $id++;
        my $uri = "$path?id=$id&h=Set-Cookie:%20session=new";

        return join ', ', map {
            $cookie->($n->post($uri, key => $id, body => 'b', headers => $_))
        } @headers;
    };

    my $new = 'Cookie: session=new';

    is($ask->('/', [], [$new], [$a], ['X-Api-Key: x'], []),
       '200 NEW cookie' . ', 200 REPLAYED' x 4,
       'nobody, then somebody');
    is(executions($id), 1, '... executed once');
    is($ask->('/', [$new], [$new], []),
       '200 NEW cookie, 200 REPLAYED cookie, 409 CONFLICT',
       'somebody: his retry has the cookies, nobody has the answer');
    is($ask->('/always', [], [$new]), '200 NEW cookie, 200 REPLAYED cookie',
       'idempotency_replay_cookies always');
    is($ask->('/never', [$new], [$new]), '200 NEW cookie, 200 REPLAYED',
       'idempotency_replay_cookies never');
    is($ask->('/named', ['X-User: '], ['X-User: a'], [$a], ['X-User: b']),
       '200 NEW cookie' . ', 200 REPLAYED' x 3,
       'likewise where idempotency_identity has no value');
    is($ask->('/named', ['X-User: a'], ['X-User: a'], ['X-User: b'], []),
       '200 NEW cookie, 200 REPLAYED cookie, 409 CONFLICT, 409 CONFLICT',
       '... and where it has one');

    $id++;
    is(join(', ', map { $cookie->($n->post("/?id=$id", key => $id,
                                           body => $_->[0],
                                           headers => $_->[1])) }
                  [ 'b', [] ], [ 'c', [$new] ], [ 'b', [$new] ]),
       '200 NEW, 409 CONFLICT, 200 REPLAYED', 'another body is a conflict');

    # who waits for it
    $id++;
    my $uri = "/?id=$id&gate=1&h=Set-Cookie:%20session=new";
    my @o = (key => $id, body => 'b');
    my $owner = $n->start(POST => $uri, @o);
    held($id);

    my @waiting = map { $n->start(POST => $uri, @o, headers => $_) }
                  [], [$new], [$a];
    is($cookie->($n->post($uri, key => $id, body => 'c', headers => [$new])),
       '409 CONFLICT', 'pending: another body');

    go($id);
    is($cookie->($owner->response), '200 NEW cookie', 'pending: its owner');
    is($cookie->($_->response), '200 WAITED', '... who waited')
        for @waiting;
    is(executions($id), 1, '... executed once');

    # ... and gets a response that releases
    $id++;
    $uri = "/?id=$id&gate=1&status=429&h=Set-Cookie:%20session=new";
    $owner = $n->start(POST => $uri, @o, key => $id);
    held($id);

    @waiting = map { $n->start(POST => $uri, @o, key => $id, headers => $_) }
               [$new], [$a];

    # one worker takes them in their order: when this is answered, they wait
    is(told($n->post($uri, key => $id, body => 'c', headers => [$new])),
       '409 CONFLICT', 'to be released: another body');

    go($id);
    is($cookie->($owner->response), '429 NEW cookie',
       'to be released: its owner');
    is($cookie->($_->response), '429 WAITED', '... who waited') for @waiting;
}


# --- the TLS client certificate ----------------------------------------------

sub tls {
    my ($port, $path, @who) = @_;

    $id++;

    return join ', ', map {
        my ($cert, @headers) = @$_;

        told($n->curl('-k', '-d', 'b', '-H', 'Idempotency-Key: k',
                      $cert ? "-E$pki/$cert.pem" : (),
                      map({ ('-H', $_) } @headers),
                      "https://127.0.0.1:" . $n->port($port)
                      . "$path?id=$id"));
    } @who;
}

is(tls(1, '/', [''], ['']), '200 NEW, 200 REPLAYED', 'TLS, no certificate');
is(tls(1, '/', ['alice'], ['alice']), '200 NEW, 200 REPLAYED',
   'a certificate, twice');
is(tls(1, '/', ['alice'], ['bob'], ['alice']),
   '200 NEW, 409 CONFLICT, 200 REPLAYED', 'another certificate');
is(tls(1, '/', ['alice'], ['alice2']), '200 NEW, 409 CONFLICT',
   'another certificate with the same name');
is(tls(1, '/', ['alice'], ['']), '200 NEW, 409 CONFLICT',
   'no certificate any more');
is(tls(1, '/', [''], ['alice']), '200 NEW, 200 REPLAYED',
   'no certificate, then one');
is(tls(1, '/', ['alice', $a], ['bob', $a], ['', $a], ['alice', $a]),
   '200 NEW, 409 CONFLICT, 409 CONFLICT, 200 REPLAYED',
   'Authorization does not stand in for a certificate');
is(tls(1, '/', ['alice', $a], ['alice', $b], ['alice'], ['alice', $a]),
   '200 NEW, 409 CONFLICT, 409 CONFLICT, 200 REPLAYED',
   'nor a certificate for Authorization');
is(tls(1, '/', ['alice', $ca], ['alice', $cb], ['bob', $ca]),
   '200 NEW, 409 CONFLICT, 409 CONFLICT', 'nor for a Cookie');
is(tls(1, '/named', ['alice', 'X-User: a'], ['bob', 'X-User: a'],
       ['alice', 'X-User: b']),
   '200 NEW, 200 REPLAYED, 409 CONFLICT',
   'idempotency_identity stands for all of them');
is(tls(2, '/', ['mallory'], ['mallory'], ['alice'], ['']),
   '200 NEW, 200 REPLAYED, 409 CONFLICT, 409 CONFLICT',
   'certificates that nobody verified');


# --- what was asked ----------------------------------------------------------

my %default = (key => 'k', body => 'b', type => 'text/plain');

sub acted {
    my (@requests) = @_;

    $id++;

    return join ', ', map {
        my ($method, $uri, %o) = @$_;

        told($n->request($method, "$uri?id=$id", %default, %o));
    } @requests;
}

sub with { return [ @_ ] }

is(acted(with('POST', '/x'), with('PATCH', '/x'), with('POST', '/x')),
   '200 NEW, 409 CONFLICT, 200 REPLAYED', 'another method');
is(acted(with('POST', '/x'), with('POST', '/y'), with('POST', '/x')),
   '200 NEW, 409 CONFLICT, 200 REPLAYED', 'another path');
is(acted(with('POST', '/x'), with('POST', '/X')),
   '200 NEW, 409 CONFLICT', 'a path in another case');
is(acted(with('POST', '/x'), with('POST', '/x/')),
   '200 NEW, 409 CONFLICT', 'a path with a slash more');
is(acted(with('POST', '/x'), with('POST', '/x', body => 'c'),
         with('POST', '/x')),
   '200 NEW, 409 CONFLICT, 200 REPLAYED', 'another body');
is(acted(with('POST', '/x'), with('POST', '/x', body => '')),
   '200 NEW, 409 CONFLICT', 'no body any more');
is(acted(with('POST', '/x'), with('POST', '/x', host => 'elsewhere'),
         with('POST', '/x')),
   '200 NEW, 409 CONFLICT, 200 REPLAYED', 'another host');
is(acted(with('POST', '/x'), with('POST', '/x', host => 'LOCALHOST')),
   '200 NEW, 200 REPLAYED', 'a host in another case is the same host');
is(acted(with('POST', '/x'), with('POST', '/x', type => 'application/json'),
         with('POST', '/x')),
   '200 NEW, 409 CONFLICT, 200 REPLAYED', 'another content type');
is(acted(with('POST', '/x'), with('POST', '/x', type => undef)),
   '200 NEW, 409 CONFLICT', 'no content type any more');
is(acted(with('POST', '/x'),
         with('POST', '/x', headers => [ 'X-Other: 1', 'User-Agent: y',
                                         'Accept: */*' ])),
   '200 NEW, 200 REPLAYED', 'other headers do not count');

for my $case ([ '&a=1', '&a=2', 'another argument' ],
              [ '&a=1', '', 'an argument less' ],
              [ '&a=1', '&a=1&b=1', 'an argument more' ],
              [ '&a=1&b=2', '&b=2&a=1', 'arguments in another order' ])
{
    my ($first, $then, $name) = @$case;

    $id++;
    is(join(', ', map { told($n->post("/x?id=$id$_", %default)) }
                  $first, $then, $first),
       '200 NEW, 409 CONFLICT, 200 REPLAYED', $name);
}


# Fields must not run together: what leaves one field cannot be made up for by
# another.

{
    $id++;
    my @r = map { told($n->post("/$_->[0]?id=$id&x=$_->[1]", %default,
                                body => $_->[2])) }
            [ 'ab', 'c', 'd' ], [ 'a', 'bc', 'd' ], [ 'ab', 'cd', '' ];
    is("@r", '200 NEW 409 CONFLICT 409 CONFLICT', 'fields do not run together');
}


# --- conflict, whatever the outcome is ---------------------------------------

{
    my $r = $n->post('/failed?id=failed&status=500', key => 'failed');
    is(told($r), '500 NEW', 'a failure');
    is(told($n->post('/failed?id=failed&status=500', key => 'failed',
                     body => 'other')), '409 CONFLICT',
       '... is bound like a success');

    $r = $n->post('/small?id=small', key => 'small');
    is(told($r), '200 NEW', 'a response that is not kept');
    is(told($n->post('/small?id=small', key => 'small', body => 'other')),
       '409 CONFLICT', '... conflict goes before');
    is(told($n->post('/small?id=small', key => 'small')), '409 NOT_KEPT',
       '... the same request');

    my $c = $n->start('POST', '/pending?id=pending&gate=1', key => 'pending',
                      body => 'b');
    held('pending');
    is(told($n->post('/pending?id=pending&gate=1', key => 'pending',
                     body => 'other')), '409 CONFLICT',
       'a pending one: conflict goes before');

    my $d = $n->start('POST', '/pending?id=pending2&gate=1', key => 'pending2',
                      body => 'b', headers => [$b]);
    held('pending2');
    is(told($n->post('/pending?id=pending2&gate=1', key => 'pending2',
                     body => 'b', headers => [$a])), '409 CONFLICT',
       '... for a stranger too');
    go('pending2');
    is(told($d->response), '200 NEW', '... and its owner has its answer');
    is(told($n->post('/pending?id=pending&gate=1', key => 'pending',
                     body => 'b')), '409 IN_PROGRESS', '... the same request');
    go('pending');
    is(told($c->response), '200 NEW', '... and the owner has its answer');
    is(executions('pending'), 1, '... of one execution');
}

done_testing();
