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
is(asked('/', [], [$a], []), '200 NEW, 409 CONFLICT, 200 REPLAYED',
   'nobody, then somebody');

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
is(tls(1, '/', [''], ['alice']), '200 NEW, 409 CONFLICT',
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
    is(told($n->post('/pending?id=pending&gate=1', key => 'pending',
                     body => 'b', headers => [$a])), '409 CONFLICT',
       '... for a stranger too');
    is(told($n->post('/pending?id=pending&gate=1', key => 'pending',
                     body => 'b')), '409 IN_PROGRESS', '... the same request');
    go('pending');
    is(told($c->response), '200 NEW', '... and the owner has its answer');
    is(executions('pending'), 1, '... of one execution');
}

done_testing();
