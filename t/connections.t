# What takes several connections at a time, or another protocol than HTTP/1.1:
# who asks, by TLS client certificate and by HTTP/2; what comes behind a refusal;
# who is asked for a body; numbers that grow; who waits for what nobody in
# particular has begun; a dry run that doesn't wait.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;

use MIME::Base64;


my $pki = File::Temp->newdir('idempotency-pki-XXXXXX', TMPDIR => 1);

for ([ 'server' ], [ 'ca' ], [ 'alice', 'alice', 'ca' ], [ 'alice2', 'alice', 'ca' ],
     [ 'bob', 'bob', 'ca' ], [ 'mallory', 'alice' ])
{
    my ($name, $cn, $ca) = @$_;

    $cn //= $name;

    # req says of what signs itself that it may sign others
    my $to = $ca ? "-out $name.csr && openssl x509 -req -in $name.csr -CA $ca.crt -CAkey $ca.key"
                   . " -CAcreateserial -days 30" : '-x509 -days 30';

    my $said = qx(cd $pki && exec 2>&1
        openssl req -newkey rsa:2048 -nodes -keyout $name.key -subj /CN=$cn $to -out $name.crt &&
        cat $name.crt $name.key >$name.pem);
    die $said if $?;
}

my $n = nginx(files => { htpasswd => "user:{PLAIN}good\n" }, http => <<"EOC" . <<'EOC', server => <<'EOC');
    ssl_certificate $pki/server.crt;
    ssl_certificate_key $pki/server.key;
    ssl_client_certificate $pki/ca.crt;
EOC
    idempotency zone=z;
    idempotency_key $arg_id;
    large_client_header_buffers 8 256k;
    add_header X-Status $idempotency_status always;
    add_header X-Age $idempotency_age;
    add_header X-Fence $idempotency_fence always;

    server {
        listen 127.0.0.1:$TEST_NGINX_RAND_PORT_2 ssl;
        ssl_verify_client optional_no_ca;
        location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    }
EOC
    listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1 ssl;
    listen 127.0.0.1:$TEST_NGINX_RAND_PORT_3 http2;
    ssl_verify_client optional;
    auth_basic_user_file $TEST_NGINX_ROOT/htpasswd;

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /named { idempotency_identity $http_x_user; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /dry { idempotency_dry_run on; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /guard.js { idempotency_guard; }
    location /figures/ { idempotency_api; }
    location /all { auth_basic closed; allow all; proxy_pass http://$TEST_NGINX_BACKEND; }
    location = /auth { internal; return 403; }

    location /reject {
        idempotency_key $http_idempotency_key;
        idempotency_missing_key reject;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /any {
        satisfy any;
        deny all;
        auth_basic closed;
        proxy_pass http://$TEST_NGINX_BACKEND;
        location /any/request { auth_request /auth; proxy_pass http://$TEST_NGINX_BACKEND; }
    }
EOC

my $id = 'case0';


# --- TLS: the client certificate is who asks, beside what headers say ----------

# of the same request: a certificate, or -, and headers; they get these statuses
sub tls {
    my ($port, $path, $statuses, @who) = @_;

    $id++;
    is(join(' ', map {
        my ($cert, @headers) = split /, /;

        $n->curl('-k', '-d', 'b', $cert eq '-' ? () : "-E$pki/$cert.pem", map({ ('-H', $_) } @headers),
                 'https://127.0.0.1:' . $n->port($port) . "$path?id=$id")->header('X-Status');
    } @who), $statuses, "TLS, $path: " . join ' | ', @who);
}

my ($bearer_a, $bearer_b) = map { "Authorization: Bearer $_" } qw(a b);

tls(1, '/', 'NEW REPLAYED REPLAYED', '-', '-', 'alice');
tls(1, '/', 'NEW REPLAYED CONFLICT CONFLICT CONFLICT REPLAYED', qw(alice alice bob alice2 - alice));
tls(1, '/', 'NEW CONFLICT CONFLICT CONFLICT CONFLICT REPLAYED', "alice, $bearer_a",
    "bob, $bearer_a", "-, $bearer_a", "alice, $bearer_b", 'alice', "alice, $bearer_a");
tls(1, '/', 'NEW CONFLICT CONFLICT', 'alice, Cookie: s=a', 'alice, Cookie: s=b', 'bob, Cookie: s=a');
tls(1, '/named', 'NEW REPLAYED CONFLICT', 'alice, X-User: a', 'bob, X-User: a', 'alice, X-User: b');
tls(2, '/', 'NEW REPLAYED CONFLICT CONFLICT', qw(mallory mallory alice -));


# --- HTTP/2: each cookie may have a line of its own ----------------------------

sub h2 {
    my ($uri, @args) = @_;

    return $n->curl('--http2-prior-knowledge', @args, 'http://127.0.0.1:' . $n->port(3) . $uri);
}

is(told(map { h2('/?id=h2', '-d', 'b', map { ('-H', "Cookie: $_") } @$_) }
            [ 'session=a; cart=1; _ga_X=1' ], [ 'cart=1', '_ga_X=2', 'session=a' ], [ 'session=b', 'cart=1' ]),
   '200 NEW, 200 REPLAYED, 409 CONFLICT', 'HTTP/2: cookies');

is_deeply(map({ [ $_->{body}, $_->header('ETag') ] } h2('/guard.js'), $n->get('/guard.js')), 'HTTP/2: the guard');


# All the cookies that one header may hold, in pairs as short as they can be and in
# the worst order, cost no more than as many bytes in another header: sixteen times
# as many are sixteen times the work, not 256 times.

sub ticks {
    my ($pid) = $n->workers;
    open my $f, '<', "/proc/$pid/stat" or die;
    my ($rest) = <$f> =~ /\) (.*)/;
    return (split ' ', $rest)[11];
}

my ($few, $many) = map {
    my ($count, $before) = ($_, ticks());
    my @cookie = ('Cookie: ' . join ';', map { 'c' . $_ % 10 } 1 .. $count);
    my @failed = grep { $_ != 200 } map { $n->post("/?id=$count-$_", headers => \@cookie)->{status} } 1 .. 40;

    is("@failed", '', "$count cookies");
    ticks() - $before;
} 5_000, 80_000;

cmp_ok($many, '<=', 60 * ($few + 2), "80,000 cookies: $many ticks, 5,000: $few");


# --- the connection behind a refusal --------------------------------------------

# each refusal with the next request right behind it
for my $body ('b', 'b' x 300000) {
    for my $chunked (0, 1) {
        my $uri = '/reject?id=' . ++$id;
        my %o = (body => $body, chunked => $chunked);
        my $c = $n->connect;

        $n->post($uri, key => $id, body => 'first');
        $c->send(message(POST => $uri, %o) . message(POST => $uri, key => '"', %o)
                 . message(POST => $uri, key => $id, %o) . message(POST => $uri, key => $id, body => 'first')
                 . message(GET => $uri, close => 1));

        is(told(map { $c->response('POST') } 1 .. 5),
           '400 MISSING, 400 MALFORMED, 409 CONFLICT, 200 REPLAYED, 200 -',
           'a pipeline, bodies of ' . length($body) . ($chunked ? ', chunked' : ''));
        ok($c->closed, '... and nothing is left');
        is(executions($id), 2, '... executed once, and the GET');
    }
}

# one that needs no body does not wait for it, nor lose its place
my $half = $n->start(POST => '/reject?id=half', headers => [ 'Content-Length: 10' ], body => '12345');
is(told($half->response), '400 MISSING', 'half a body');
$half->send('67890' . message(POST => '/reject?id=half', key => 'half', body => 'b'));
is(told($half->response), '200 NEW', '... the rest of it, the next request');

my $old = $n->post('/reject', version => '1.0');
is(told($old) . ' ' . $old->header('Content-Length'), '400 MISSING ' . length $old->{body}, 'HTTP/1.0');

# no body: curl takes an answer that is quicker than its body for an error
my $r = h2('/reject', '-X', 'POST');
is("$r->{version} " . told($r), 'HTTP/2 400 MISSING', 'HTTP/2');
like($r->{body}, qr/"status":400,.*\}\r\n\z/, '... whole');

$r = h2('/reject?h2', '-X', 'POST', '-H', 'Accept: text/html', '-e', 'http://127.0.0.1:' . $n->port(3) . '/x?y');
like($r->{body}, qr{href="/x\?y"}, '... a page with a way back');

($r, my $conflict) = map { h2('/reject?id=h2r', '-H', 'Idempotency-Key: h2r', '-d', $_) } qw(b c);
is(told($r, $conflict), '200 NEW, 409 CONFLICT', '... a conflict');
is($conflict->header('Content-Type'), 'application/problem+json', '... is a problem');


# --- access control comes before the body: a stranger is not asked for one ------

for my $path ('/all', '/any', '/any/request') {
    for my $password (qw(bad good)) {
        my $c = $n->start(POST => "$path?id=" . ++$id, headers => [
            'Authorization: Basic ' . encode_base64("user:$password", ''), 'Content-Length: 1',
            'Expect: 100-continue' ]);
        $c->send('b') if $password eq 'good';

        my $r = $c->response;
        is(told($r) . ', interim ' . @{$r->{interim}},
           $password eq 'good' ? '200 NEW, interim 1' : '401 -, interim 0', "$path, Expect, a $password password");
    }
}


# --- numbers that grow ----------------------------------------------------------

{
    my ($age, $start) = (0, time);

    $n->post('/?id=age');
    ok(until_true { ($age = $n->post('/?id=age')->header('X-Age')) >= 2 }, 'the age of a record grows');
    cmp_ok(time - $start, '>=', 1, '... by seconds');
    cmp_ok($age, '<=', time - $start + 1, '... and not faster');

    my @fence = map { $n->post($_)->header('X-Fence') } '/?id=f1', '/?id=f1', '/?id=f2&status=429', '/?id=f2&status=429';
    ok($fence[0] == $fence[1] && $fence[1] < $fence[2] && $fence[2] < $fence[3],
       "each claim of a token has a higher fence: @fence");
}


# --- several at a time ---------------------------------------------------------

# Who waits for what nobody in particular has begun gets it without its cookies,
# be it kept or released.

my $new = 'Cookie: session=new';

for my $status (200, 429) {
    my $uri = '/?id=' . ++$id . "&gate=1&status=$status&h=Set-Cookie:%20session=new";
    my $owner = $n->start(POST => $uri, body => 'b');
    held($id);

    my @waiting = $n->racing(sub {
        map { $n->start(POST => $uri, body => 'b', headers => $_) } [], [$new], [$bearer_a];
    });

    is(told($n->post($uri, body => 'c', headers => [$new])), '409 CONFLICT', 'another body, while pending');

    go($id);
    my @r = map { $_->response } $owner, @waiting;
    is(told(@r), "$status NEW" . ", $status WAITED" x 3, 'its owner, and who waited');
    is(join(' ', map { $_->header('Set-Cookie') // '-' } @r), 'session=new - - -', '... without the cookie');
    is(executions($id), 1, '... of one execution');
}

# A dry run never waits: both are at the upstream at one time.

my @dry = map {
    my $c = $n->start(POST => '/dry?id=dry&gate=1', body => 'b');
    held('dry', $_);
    $c;
} 1, 2;

go('dry');
is(told(map { $_->response } @dry), '200 NEW_DRY_RUN, 200 IN_PROGRESS_DRY_RUN', 'a dry run');
is(executions('dry'), 2, '... executes both');

done_testing();
