#!/usr/bin/perl

# docs/directives.md, idempotency_identity: who asks, as the configuration and
# the names of real headers tell.

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;


# nginx -t warns where who asks is the same for all, or a guess

for ([ 'idempotency_identity nobody;', qr/"idempotency_identity" is the constant "nobody"/ ],
     [ 'idempotency_missing_key content;', qr/idempotency_missing_key content without an idempotency_identity/ ],
     [ "idempotency_identity '';\nidempotency_missing_key content;", qr/idempotency_missing_key content without/ ])
{
    my ($line, $why) = @$_;

    for my $server ("location / { idempotency zone=z;\n$line\n}",
                    "location / { idempotency zone=z; } location /x { idempotency zone=z; }\n$line")
    {
        my ($ok, $said, $file) = config_test(server => $server);
        my @warned = $said =~ /\[warn\] (.*)/g;

        ok($ok, "$line: nginx -t is content");
        is(@warned, 1, '... and warns once') or diag($said);
        like($warned[0], qr/^$why.* in ROOT\/nginx\.conf:\d+$/, '... of that');

        my ($at) = $warned[0] =~ /:(\d+)$/;
        my @lines = split /\n/, $file;
        like($lines[$at - 1], qr/^idempotency_(?:identity nobody|missing_key content);$/, '... where it stands');
    }
}

for ('location / { idempotency zone=z; idempotency_missing_key form; }',
     'location / { idempotency zone=z; idempotency_identity a$cookie_a; } idempotency_missing_key content;',
     'location / { idempotency off; } idempotency_missing_key content;',
     q{location / { idempotency zone=z; idempotency_identity ''; }})
{
    my ($ok, $said) = config_test(server => $_);

    ok($ok && $said !~ /\[warn\]/, "$_: nothing to warn of") or diag($said);
}


# names of headers: those of the unit test, some of them on their way through
# nginx (a name has another value in the second request)

my ($counts, $others) = slurp("$FindBin::Bin/unit/credential_test.c")
                        =~ /static char  \*(?:credentials|others)\[\] = \{\n(.*?)    NULL\n/gs;

my $n = nginx(server => <<'EOC');
    underscores_in_headers on;
    ignore_invalid_headers off;
    location / { idempotency zone=z; proxy_pass http://$TEST_NGINX_BACKEND; }
EOC

my $unfit = qr/^(?:Host|Connection|Keep-Alive|Upgrade|TE|Trailer|Transfer-Encoding|Expect|Range|Via|Cookie|Accept
                  |Content-Type|Content-Length|Content-Encoding|Depth|Destination|Overwrite|If-.*|User-Agent
                  |Idempotency[-_]Key)$/x;

for ([ $counts, 409, 'counts' ], [ $others, 200, 'counts for nothing' ]) {
    my ($names, $status, $what) = @$_;
    my @names = grep { !/$unfit/ } $names =~ /"([^"]+)"/g;

    cmp_ok(scalar @names, '>', 150, "names of which each $what");

    my @wrong = grep {
        my $name = $_;
        my @r = map { $n->post('/x', key => "name-$name", headers => ["$name: $_"]) } 1, 2;

        $r[0]{status} != 200 || $r[1]{status} != $status
    } @names;

    is("@wrong", '', "$what, through nginx");
}

ok($n->stop, 'the log is clean');


# What was bound without any credential: a success is for whoever asks for the
# same; anything else for those who have none either, or no others than the
# cookies that came with it, name and value. Never with Set-Cookie.

$n = nginx(workers => 2, server => <<'EOC');
    add_header X-Status $idempotency_status always;
    add_header X-Reason $idempotency_reason always;
    idempotency zone=z;
    idempotency_in_progress wait;

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /always { idempotency_replay_cookies always; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /hidden { idempotency_hide_header Set-Cookie; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /small { idempotency_max_response 4; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /retry { idempotency_in_doubt retry; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /dry { idempotency_dry_run on; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /named { idempotency_identity "$cookie_visitor$cookie_v2"; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /device { idempotency_identity $http_x_device; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /only { idempotency_identity $cookie_session; idempotency_ignore_cookies *; proxy_pass http://$TEST_NGINX_BACKEND; }
    location = /outcome { idempotency_api; }
    location /figures/ { idempotency_api; }
EOC

my $id = 0;

# the first one has no credentials; then come these
sub then {
    my ($uri, $name, @then) = @_;

    $id++;
    my $first = $n->post($uri, key => "k$id", body => 'b');

    while (@then) {
        my ($who, $status) = splice @then, 0, 2;
        my $r = $n->post($uri, key => "k$id", body => 'b', headers => [ split /\n/, $who ]);

        is($r->header('X-Status'), $status, "$name: " . ($who =~ s/\n/, /gr || 'nobody'));
        is($r->header('X-Reason'), 'identity', '... why') if $status =~ /CONFLICT/;
        ok(!$r->has('Set-Cookie'), '... without Set-Cookie') unless $uri =~ /always|dry/;

        if ($status eq 'REPLAYED') {
            is($r->{status}, $first->{status}, '... its status');
            is($r->{body}, $first->{body}, '... its body');
        }
    }
}

my $cookie = 'h=Set-Cookie:%20session=new;%20Path=/&h=Set-Cookie:%20seen%20=%20"1"%20%20;%20HttpOnly';
my $login = "status=302&h=Location:%20/login&$cookie";
my ($bearer, $key, $old) = ('Authorization: Bearer a', 'X-Api-Key: a', 'Cookie: session=old');
my $new = 'Cookie: session=new';

then("/x?status=$_&$cookie", "a $_ is everybody's", map { ($_ => 'REPLAYED') } '', $new, $old, $bearer, $key, '')
    for 200, 201, 204;

then("/x?$login", 'a redirect', '' => 'REPLAYED', $new => 'REPLAYED', "$new; seen=\"1\"" => 'REPLAYED',
     'Cookie: seen="1"' => 'REPLAYED', "$new\nCookie: seen=\"1\"; _ga_X=1" => 'REPLAYED',
     'Cookie: _ga_X=1' => 'REPLAYED', "$new; session=new" => 'REPLAYED',
     $old => 'CONFLICT', "$new; other=1" => 'CONFLICT', 'Cookie: session' => 'CONFLICT', 'Cookie: Session=new' => 'CONFLICT',
     'Cookie: session=new2' => 'CONFLICT', 'Cookie: session=' => 'CONFLICT', 'Cookie: seen=1' => 'CONFLICT',
     'Cookie: Path=/' => 'CONFLICT', $bearer => 'CONFLICT', $key => 'CONFLICT', 'Authorization: Basic YTpi' => 'CONFLICT',
     "$bearer\n$new" => 'CONFLICT', "$key\n$new" => 'CONFLICT', "Authorization: Basic YTpi\n$new" => 'CONFLICT',
     "$new; session=old" => 'CONFLICT', '' => 'REPLAYED');

then("/x?status=$_", "a $_", '' => 'REPLAYED', $new => 'CONFLICT', $bearer => 'CONFLICT') for 302, 400, 404, 422, 500;
then("/always?$login", 'with cookies always', '' => 'REPLAYED', $new => 'REPLAYED', $old => 'CONFLICT', $bearer => 'CONFLICT');
then("/hidden?$login", 'cookies that nobody kept', '' => 'REPLAYED', $new => 'CONFLICT');
then("/dry?$login", 'a dry run', '' => 'REPLAYED_DRY_RUN', $new => 'REPLAYED_DRY_RUN', $bearer => 'CONFLICT_DRY_RUN');

then('/named?status=302&h=Set-Cookie:%20visitor=v', 'an identity of cookies', '' => 'REPLAYED', 'Cookie: visitor=v' => 'REPLAYED',
     'Cookie: visitor=w' => 'CONFLICT', 'Cookie: v2=v' => 'CONFLICT', "Cookie: visitor=v\n$bearer" => 'CONFLICT',
     $bearer => 'CONFLICT', 'Cookie: x=v' => 'CONFLICT');
then("/device?$login", 'an identity of something else', '' => 'REPLAYED', $new => 'REPLAYED', 'X-Device: a' => 'CONFLICT',
     "X-Device: a\n$new" => 'CONFLICT');
then("/only?$login", 'a cookie that is ignored but for that', '' => 'REPLAYED', $new => 'REPLAYED', $old => 'CONFLICT',
     'Cookie: x=1' => 'REPLAYED');

# what has no response is told by its status, too

then('/small?status=201', 'a success that is not kept', '' => 'NOT_KEPT', $new => 'NOT_KEPT', $bearer => 'NOT_KEPT');
then("/small?$login", 'a redirect that is not kept', '' => 'NOT_KEPT', $new => 'CONFLICT', $bearer => 'CONFLICT');
then('/x?close=1', 'in doubt', '' => 'REPLAYED', $new => 'CONFLICT', $bearer => 'CONFLICT');

$n->post('/x?close=1', key => 'taken', body => 'b');
is(told(map { $n->post('/retry?close=1', key => 'taken2', body => 'b', headers => $_) } [], [$bearer], [$old]),
   '502 NEW, 502 NEW, 502 NEW', 'with retry it is released, and then anybody\'s');

# /outcome is for one's own

$n->post("/x?$login", key => 'own', body => 'b');
is($n->get('/outcome', key => 'own', headers => [$_])->{status}, 404, "/outcome: $_") for $new, $bearer;

# who comes while it is pending waits first

for (['status=201', '201 WAITED, 201 WAITED, 201 WAITED, 201 WAITED'],
     [$login, '302 WAITED, 302 WAITED, 409 CONFLICT, 409 CONFLICT'])
{
    my ($what, $statuses) = @$_;
    my $uri = '/x?id=w' . ++$id . "&gate=1&$what";

    my $owner = $n->start(POST => $uri, key => "w$id", body => 'b');
    held("w$id");

    my @c = $n->racing(sub {
        map { $n->start(POST => $uri, key => "w$id", body => 'b', headers => [ $_ || () ]) } '', $new, $old, $bearer
    });
    go("w$id");
    $owner->response;

    my @r = map { $_->response } @c;
    is(told(@r), $statuses, "pending, then $what");
    ok(!(grep { $_->has('Set-Cookie') } @r), '... without Set-Cookie');
}

# ... and what releases the token binds nobody: all who waited are told of it

my $uri = "/x?id=r&gate=1&status=401&h=WWW-Authenticate:%20Bearer";
my $owner = $n->start(POST => $uri, key => 'r', body => 'b');
held('r');
my @c = $n->racing(sub { map { $n->start(POST => $uri, key => 'r', body => 'b', headers => $_) } [], [$bearer] });
go('r');
is(told(map { $_->response } $owner, @c), '401 NEW, 401 WAITED, 401 WAITED', 'released');

ok($n->stop, 'the log is clean');

done_testing();
