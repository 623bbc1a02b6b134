#!/usr/bin/perl

# docs/directives.md, idempotency_api, /outcome: what a client learns of its own
# key, and nobody else.

use lib 't/lib';
use Idempotency;

use JSON::PP qw(decode_json);

my $n = nginx(workers => 2, server => <<'EOC');
    idempotency zone=z;
    idempotency_window 1h;

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /small { idempotency_max_response 4; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /eu { idempotency_scope eu; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /one { idempotency_identity nobody; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /tenant { idempotency_identity $http_x_tenant; proxy_pass http://$TEST_NGINX_BACKEND; }

    location = /outcome { idempotency_api; }
    location = /included { ssi on; default_type text/html; return 200 '<!--#include virtual="/outcome" -->'; }
    location = /eu/outcome { idempotency_scope eu; idempotency_api write=on; }
    location = /tenant/outcome { idempotency_identity $http_x_tenant; idempotency_api; }
    location = /one/outcome { idempotency_identity nobody; idempotency_api; }
    location = /off/outcome { idempotency off; idempotency_api; }
    location /all/ { idempotency_api; }
EOC

my @me = (headers => ['Authorization: Bearer me']);
my @you = (headers => ['Authorization: Bearer you']);

sub learns {
    my ($key, %o) = @_;

    my $r = $n->get($o{uri} // '/outcome', key => $key, @me, %o);
    my $is = decode_json($r->{body});

    return $r->{status} if $r->{status} != 200;

    is($r->header('Cache-Control'), 'no-store', 'nobody keeps it');

    return join ' ', map { "$_=" . ($is->{$_} // 'null') } sort keys %$is;
}

is(learns('a'), 'outcome=unknown', 'a key that was never used');

$n->post('/x?status=201', key => 'a', @me);
is(learns('a') =~ s/(?<=expires=)3(?:600|599)\b/HOUR/r, 'expires=HOUR kept=1 outcome=done status=201', 'done');
is(learns('"a"') =~ s/expires=\d+ //r, 'kept=1 outcome=done status=201', 'in quotes');
is(learns('a', uri => '/all/outcome') =~ s/expires=\d+ //r, 'kept=1 outcome=done status=201', 'below a prefix');
is($n->request('HEAD', '/outcome', key => 'a', @me)->{status}, 200, 'HEAD');
like($n->get('/included', key => 'a', @me)->{body}, qr/"outcome":"done"/, 'in a subrequest');

is(learns('a', @you), 404, "another's");
is(learns('a', headers => []), 404, 'nobody in particular');
is(learns('b', headers => []), 404, '... and no key either');
is(learns('a', headers => ['Authorization: Bearer m']), 404, 'nearly the same');

my ($foreign, $nobody) = map { $n->get('/outcome', key => 'a', @$_) } [@you], [headers => []];
is($foreign->{body}, $nobody->{body}, 'a stranger is told what nobody is');

$n->post('/small?status=202', key => 'small', @me);
is(learns('small') =~ s/expires=\d+ //r, 'kept=0 outcome=done status=202', 'done, and not kept');

$n->post('/x?close=1', key => 'doubt', @me);
is(learns('doubt') =~ s/expires=\d+ //r, 'outcome=in_doubt status=502', 'in doubt');

my $c = $n->start(POST => '/x?id=p&gate=1', key => 'pending', @me);
held('p');
is(learns('pending'), 'expires=null outcome=pending status=null', 'pending');
is(learns('pending', @you), 404, "... another's");
go('p');
$c->response;
like(learns('pending'), qr/outcome=done/, '... then done');

$n->post('/x', key => 'anonymous');
is(learns('anonymous'), 404, 'what nobody in particular has bound is nobody\'s');

# scope and identity are the location's

$n->post('/eu?status=203', key => 'a', @me);
is(learns('a', uri => '/eu/outcome') =~ s/expires=\d+ //r, 'kept=1 outcome=done status=203', 'another scope');
is(learns('small', uri => '/eu/outcome'), 'outcome=unknown', '... has its own keys');
is(learns('small', uri => '/eu/outcome?scope=localhost'), 'outcome=unknown', '... and the client chooses none');
is($n->get('/outcome?key=a', @me)->{status}, 400, 'nor a key by the address');

$n->post('/tenant', key => 't', headers => ['X-Tenant: one', 'Cookie: a=b']);
like(learns('t', uri => '/tenant/outcome', headers => ['X-Tenant: one']), qr/outcome=done/, 'another identity');
is(learns('t', uri => '/tenant/outcome', headers => ['X-Tenant: two']), 404, '... of another');
is(learns('t', uri => '/tenant/outcome', headers => ['Cookie: a=b']), 404, '... of nobody');

$n->post('/one', key => 'o', @me);
is(learns('o', uri => '/one/outcome'), 404, 'a constant is no identity');

is($n->get('/outcome', @me)->{status}, 400, 'without a key');
is($n->get('/outcome', key => '"a', @me)->{status}, 400, 'a malformed one');
is($n->get('/outcome', headers => [@{$me[1]}, 'Idempotency-Key: a', 'Idempotency-Key: b'])->{status}, 400,
   'two of them');
is($n->get('/off/outcome', key => 'a', @me)->{status}, 404, 'where nothing is protected');

for (qw(POST PUT DELETE)) {
    my $r = $n->request($_, '/eu/outcome', key => 'a', @me);

    is($r->{status}, 405, "$_, be it with write=on");
    is($r->header('Allow'), 'GET, HEAD', '... Allow');
}

ok(!$n->get('/outcomes', @me)->has('Cache-Control'), 'and nothing but that is here');

ok($n->stop, 'the log is clean');

done_testing();
