# SPEC, "Refusals": what a refused client is told, in which form, and what
# error_page may make of it.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;
use Pages qw(text);

use Digest::SHA qw(sha256_base64);
use JSON::PP;


my $n = nginx(files => { 'html/refused.html' => "a page of ours\n" },
              http => <<'EOC', server => <<'EOC');
    idempotency_zone zone=full:32k;

    server {
        listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1 http2;
        server_name h2;

        idempotency zone=z;
        idempotency_missing_key reject;
        add_header X-Status $idempotency_status always;

        location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    }
EOC
    idempotency zone=z;
    idempotency_in_progress reject;
    large_client_header_buffers 4 64k;

    add_header X-Status $idempotency_status always;
    add_header X-Refusal $idempotency_refusal always;
    add_header X-Detail $idempotency_detail always;

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }

    location /small {
        idempotency_max_response 4;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /reject {
        idempotency_missing_key reject;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /similar {
        idempotency_similar reject;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /full {
        idempotency zone=full;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /expired {
        idempotency_key_format uuid7;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /limited {
        idempotency_quota 1 $arg_id;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /field {
        idempotency_key $idempotency_field_token;
        idempotency_normalize_buffer 1k;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /content {
        idempotency_missing_key content;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    # an API's own shape, which may be a file's, another server's, or ours
    location /shape {
        idempotency_missing_key reject;
        error_page 400 409 @shape;
        proxy_pass http://$TEST_NGINX_BACKEND;

        location /shape/small {
            idempotency_max_response 4;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /shape/uri {
            error_page 400 409 /shape.json;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /shape/dry {
            idempotency_dry_run on;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }
    }

    location @shape {
        default_type application/json;
        return 200 '{"error":{"code":"$idempotency_refusal","message":"$idempotency_detail"}}';
    }

    location = /shape.json {
        default_type application/json;
        return 200 '{"error":{"code":"$idempotency_refusal","message":"$idempotency_detail"}}';
    }

    location /docs {
        idempotency_docs https://example.com/idempotency;
        idempotency_missing_key reject;
        proxy_pass http://$TEST_NGINX_BACKEND;

        location /docs/small {
            idempotency_max_response 4;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /docs/similar {
            idempotency_similar reject;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /docs/expired {
            idempotency_key_format uuid7;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /docs/limited {
            idempotency_quota 1 $arg_id;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }

        location /docs/full {
            idempotency zone=full;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }
    }

    location /codes {
        idempotency_status conflict=422 in_progress=425 not_kept=410
                           missing=428 malformed=418;
        idempotency_missing_key reject;
        proxy_pass http://$TEST_NGINX_BACKEND;

        location /codes/small {
            idempotency_max_response 4;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }
    }

    location /some-codes {
        idempotency_status conflict=422;
        idempotency_missing_key reject;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /page {
        idempotency_missing_key reject;
        error_page 400 409 /refused.html;
        proxy_pass http://$TEST_NGINX_BACKEND;

        location /page/small {
            idempotency_max_response 4;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }
    }

    location = /refused.html { root $TEST_NGINX_ROOT/html; }

    location /ok {
        error_page 409 =202 /refused.html;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /named {
        idempotency_missing_key reject;
        error_page 400 409 = @named;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location @named { return 460 "named\n"; }

    location /proxied {
        idempotency_missing_key reject;
        error_page 400 409 @proxied;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location @proxied {
        rewrite ^ /page?id=page&body=page? break;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }

    location /codes-page {
        idempotency_status conflict=422;
        error_page 422 =422 /refused.html;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
EOC

my $id = 'case0';

sub told {
    my ($r) = @_;

    return $r ? "$r->{status} " . ($r->header('X-Status') // '-') : 'nothing';
}

# Each refusal, in a location and below it; the pending ones are let go.

sub refused {
    my ($why, $path, %o) = @_;

    my $uri = "$path?id=" . ++$id;

    if ($why eq 'CONFLICT') {
        $n->post($uri, key => $id, body => 'one');
        return $n->post($uri, key => $id, body => 'other', %o);
    }

    if ($why eq 'IN_PROGRESS') {
        my $c = $n->start('POST', "$uri&gate=1", key => $id, body => 'b');
        held($id);

        my $r = $n->post("$uri&gate=1", key => $id, body => 'b', %o);
        go($id);
        is(told($c->response), '200 NEW', 'its owner is not disturbed');

        return $r;
    }

    if ($why eq 'NOT_KEPT') {
        my $first = $n->post("$path/small?id=$id", key => $id, body => 'b');
        return $n->post("$path/small?id=$id", key => $id, body => 'b', %o);
    }

    if ($why eq 'SIMILAR') {
        $n->post($uri, key => "$id-1", body => $id);
        return $n->post($uri, key => "$id-2", body => $id, %o);
    }

    if ($why eq 'LIMITED') {
        $n->post($uri, key => "$id-1");
        return $n->post($uri, key => "$id-2", %o);
    }

    return $n->post($uri, key => '01890000-0000-7000-8000-000000000000', %o)
        if $why eq 'EXPIRED';

    if ($why eq 'UNAVAILABLE') {
        my $i = 0;
        1 while $n->post($uri, key => "$id-" . ++$i)->{status} == 200;
        return $n->post($uri, key => "$id-" . ++$i, %o);
    }

    return $n->post($uri, body => 'b', %o) if $why eq 'MISSING';

    return $n->post($uri, key => '"', body => 'b', %o) if $why eq 'MALFORMED';
}

sub json {
    my ($r) = @_;

    my $t = eval { JSON::PP->new->utf8->decode($r->{body}) };
    diag($@ || 'no object', substr $r->{body}, 0, 1000)
        unless ref $t eq 'HASH';

    return ref $t eq 'HASH' ? $t : {};
}

sub type_of { return ($_[0]->header('Content-Type') // '') =~ s/;.*//r }


# --- the problem document ----------------------------------------------------

my %default = (CONFLICT => 409, IN_PROGRESS => 409, NOT_KEPT => 409,
               MISSING => 400, MALFORMED => 400);
my %every = (%default, SIMILAR => 409, EXPIRED => 409, LIMITED => 429,
             UNAVAILABLE => 503);
my %retryable = map { $_ => 1 } qw(IN_PROGRESS LIMITED UNAVAILABLE);
my %seen;

sub place {
    my ($why) = @_;

    return { NOT_KEPT => '', MISSING => '/reject', SIMILAR => '/similar',
             EXPIRED => '/expired', LIMITED => '/limited',
             UNAVAILABLE => '/full' }->{$why} // '/x';
}

for my $why (sort keys %every) {
    my $r = refused($why, place($why));

    is(told($r), "$every{$why} $why", $why);
    is(type_of($r), 'application/problem+json', '... is problem+json');
    is($r->header('Content-Length'), length $r->{body}, '... of that length');
    is(($r->header('Idempotent-Replayed') // 'none'), 'none',
       '... is no replay');
    ok(!$r->has('Link'), '... no Link without idempotency_docs');

    if ($why eq 'IN_PROGRESS') {
        is($r->header('Retry-After'), 1, '... Retry-After in seconds');

    } elsif ($why eq 'LIMITED') {
        like($r->header('Retry-After') // '', qr/^86(?:400|3\d\d)$/,
             '... Retry-After in seconds: when the oldest token ends');

    } elsif ($why eq 'UNAVAILABLE') {
        like($r->header('Retry-After') // '', qr/^(?:[5-9]|1[0-5])$/,
             '... Retry-After in seconds');

    } else {
        ok(!$r->has('Retry-After'), '... no Retry-After');
    }

    my $p = json($r);

    is(join(' ', sort keys %$p), 'detail instance retryable status title type',
       '... RFC 9457 members, and one of ours');
    cmp_ok($p->{status}, '==', $every{$why}, '... status');
    like($r->{body}, qr/"status"\s*:\s*$every{$why}\b/,
         '... which is a number');
    is($p->{retryable}, $retryable{$why} ? JSON::PP::true : JSON::PP::false,
       '... whether the same again can help');
    like($r->{body}, qr/"retryable":(?:true|false)/, '... which is a boolean');
    is($r->header('X-Refusal'), lc $why, '... $idempotency_refusal');
    is($r->header('X-Detail'), $p->{detail}, '... $idempotency_detail');
    unlike($p->{detail}, qr/["\\%]/, '... that JSON takes as it is');
    like($p->{title}, qr/^\w.{6,}/, '... a title');
    like($p->{detail}, qr/^\w.{10,}/, '... a detail');
    ok(!$seen{$p->{title}}++, '... a title of its own');
    like($p->{instance}, qr/\?id=$id\b/, '... the URI is the instance');
    ok(length $p->{type}, '... a type');
}

{
    my @r = map { $n->post('/x?id=none', key => 'none') } 1, 2;
    is(join(' ', map { $_->has('X-Refusal') || $_->has('X-Detail') ? 1 : 0 } @r),
       '0 0', 'neither variable where nothing is refused');
}

# A refusal that names the original's status.

for my $status (201, 503) {
    $id++;
    $n->post("/small?id=$id&status=$status", key => $id);
    my $r = $n->post("/small?id=$id&status=$status", key => $id);
    is(told($r), '409 NOT_KEPT', "a response of status $status not kept");
    like($r->{body}, qr/\b$status\b/, '... its status is named');
}


# --- HTML where Accept prefers it --------------------------------------------

my $html = 'text/html';
my $json = 'application/problem+json';
my $firefox = 'text/html,application/xhtml+xml,application/xml;q=0.9,'
              . 'image/avif,image/webp,*/*;q=0.8';
my $chrome = 'text/html,application/xhtml+xml,application/xml;q=0.9,'
             . 'image/avif,image/webp,image/apng,*/*;q=0.8,'
             . 'application/signed-exchange;v=b3;q=0.7';

for ([ undef, $json ],
     [ '', $json ],
     [ '*/*', $json ],
     [ 'application/json', $json ],
     [ 'application/problem+json', $json ],
     [ 'application/*', $json ],
     [ 'application/json, text/plain, */*', $json ],
     [ 'application/json, text/html;q=0.9', $json ],
     [ 'text/html;q=0.1, application/problem+json', $json ],
     [ 'text/html;q=0.5, */*;q=0.8', $json ],
     [ 'text/html;q=0', $json ],
     [ 'text/html;q=0.000, */*', $json ],
     [ 'text/html;q=0.8, application/*;q=0.9', $json ],
     [ 'text/htmlx', $json ],
     [ 'xtext/html', $json ],
     [ 'text/plain', $json ],
     [ 'image/png', $json ],
     [ 'garbage', $json ],
     [ ',;,q=;', $json ],
     [ 'text/html', $html ],
     [ 'TEXT/HTML', $html ],
     [ 'text/html;level=1', $html ],
     [ 'text/html ; q=1.000', $html ],
     [ 'text/html;Q=0.5', $html ],
     [ 'text/html, */*;q=0.8', $html ],
     [ '*/*;q=0.8,text/html', $html ],
     [ 'text/html;q=0.9, application/json;q=0.5', $html ],
     [ 'application/json;q=0.899, text/html;q=0.9', $html ],
     [ 'application/json;q=0, text/html;q=0.1', $html ],
     [ $firefox, $html ],
     [ $chrome, $html ])
{
    my ($accept, $type) = @$_;

    my $r = $n->post('/reject?id=accept', body => 'b',
                     headers => [ defined $accept ? "Accept: $accept" : () ]);

    is(told($r) . ' ' . type_of($r), "400 MISSING $type",
       'Accept: ' . ($accept // 'none'));
}

is(type_of($n->post('/reject', headers => [ 'Accept: application/json',
                                            'Accept: text/html;q=0.5' ])),
   $json, 'two Accept lines: JSON is preferred');
is(type_of($n->post('/reject', headers => [ 'Accept: application/json;q=0.5',
                                            'Accept: text/html' ])),
   $html, 'two Accept lines: HTML is preferred');

# On these nothing was executed: the way back to the form may be offered.

my %back = map { $_ => 1 } qw(MISSING MALFORMED LIMITED UNAVAILABLE);
my $form = 'Referer: https://localhost/form?a=1&b=2';

sub is_page {
    my ($r, $why, $status) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    is(told($r), "$status $why", "HTML: $why");
    is(type_of($r), 'text/html', '... is HTML');
    is($r->header('Content-Length'), length $r->{body}, '... of that length');
    like($r->{body}, qr{^<!doctype\ html>.*<title>[^<]{4,}</title>.*</html>}xsi,
         '... a page');
    unlike($r->{body}, qr/<form|http-equiv=.?refresh|<script[^>]*src=/i,
           '... that posts, reloads and fetches nothing by itself');
    is(join(' ', $r->{body} =~ /(?:href|src|url|action)\s*=\s*"?([^">]*)/gi),
       $back{$why} ? '/form?a=1&amp;b=2' : '',
       '... and leads to the form only if nothing was executed');
    is(() = $r->{body} =~ /<p>(?!<a)[^<]{20,}[.]<\/p>/g, 2,
       '... says what happened, and what to do');
    unlike($r->{body} =~ s/<style>.*?<\/style>//sr =~ s/<[^>]*>//gr,
           qr/idempoten|token|\bkey\b|request/i, '... in words of people');
    is($r->has('Retry-After') ? 1 : 0, $retryable{$why} ? 1 : 0,
       '... with Retry-After if there is a sense in it');
}

for my $why (sort keys %every) {
    is_page(refused($why, place($why),
                    headers => [ "Accept: $firefox", $form ]),
            $why, $every{$why});
}

# A key that may be in a body which can't be read for it.

for ([ 'encoded', qr/cannot be read/, qr/could not be read/,
       body => 'token=x', headers => [ 'Content-Encoding: gzip' ] ],
     [ 'too large', qr/too large/, qr/too large/,
       body => 'token=' . 'x' x 100_000, headers => [] ])
{
    my ($what, $problem, $page, %o) = @$_;
    my @o = (POST => '/field?id=unread', %o, type => 'application/x-www-form-urlencoded');

    my $r = $n->request(@o);
    is(told($r), '400 MALFORMED', "a key in a body that is $what");
    like(json($r)->{detail}, $problem, '... the problem says so');
    is($r->header('X-Detail'), json($r)->{detail}, '... the variable, too');
    ok(!json($r)->{retryable}, '... the same again does not help');

    push @{$o{headers}}, "Accept: $firefox", $form;
    is_page($r = $n->request(@o, %o), 'MALFORMED', 400);
    like($r->{body}, $page, '... says so');
}

is(executions('unread'), 0, '... executed nothing');

# A claim whose owner died.
{
    my $d = nginx(allow => qr/exited on signal 9/, http => <<'EOC1', server => <<'EOC');
    server {
        listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1;
        server_name localhost;

        idempotency zone=z;
        idempotency_dry_run on;
        add_header X-Status $idempotency_status always;
        location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    }
EOC1
        idempotency zone=z;
        idempotency_docs https://example.com/idempotency;
        add_header X-Status $idempotency_status always;
        location / { proxy_pass http://$TEST_NGINX_BACKEND; }
EOC
    my @o = (POST => '/x?id=died&gate=1', key => 'died', body => 'b');
    my $c = $d->start(@o);
    held('died');
    kill KILL => $d->workers;
    ok($c->closed, 'a worker dies');

    is_page($d->request(@o, headers => [ "Accept: $firefox", $form ]),
            'IN_DOUBT', 409);

    my $p = json(my $r = $d->request(@o));
    is(told($r), '409 IN_DOUBT', '... as a problem');
    ok(defined $p->{retryable} && !$p->{retryable},
       '... that the same again does not solve');
    is($p->{type}, 'https://example.com/idempotency#in_doubt', '... its type');
    is($r->header('Link'), '<https://example.com/idempotency>; rel="describedby"',
       '... its Link');

    is(told($d->request(POST => '/x?id=died', key => 'died', body => 'b',
                        port => $d->port(1))), '200 CONFLICT_DRY_RUN',
       'a dry run, of something else');
    my $dry = $d->start(@o, port => $d->port(1));
    until_true { go('died'); $dry->readable(0.2) };
    is(told($dry->response), '200 IN_DOUBT_DRY_RUN', '... and of the same');
    $d->stop;
}

# Where the content stands for the key, the same sent again from the form counts
# once: there the pending page goes back by itself, to a path of this host.

sub pending_page {
    my ($referer, %o) = @_;

    my @o = (POST => '/content?id=' . ++$id . '&gate=1', body => 'b', %o);
    my $c = $n->start(@o);
    held($id);

    my $r = $n->request(@o, headers => [ "Accept: $firefox",
                                         defined $referer
                                             ? "Referer: $referer" : () ]);
    go($id);
    is(told($c->response), '200 NEW', 'its owner ends');
    is(told($r), '409 IN_PROGRESS', 'pending, ' . ($referer // 'no Referer'));
    is(executions($id), 1, '... executed once');

    return [ $r->{body} =~ /(?:href|src|url|action)\s*=\s*"?([^">]*)/gi ];
}

is_deeply(pending_page(undef), [], '... leads nowhere without it');

for ([ 'http://localhost/', '/' ],
     [ 'https://localhost/form', '/form' ],
     [ 'HTTPS://LOCALHOST/form', '/form' ],
     [ 'https://localhost/a/b.html?x=1&y="z"', '/a/b.html?x=1&amp;y=&quot;z&quot;' ],
     [ 'https://localhost/f%C3%BC', '/f%C3%BC' ],
     [ 'https://localhost/form?then=//x/%2F%0A', '/form?then=//x/%2F%0A' ],
     [ 'https://localhost' ],
     [ 'https://localhost//evil.example/x' ],
     [ 'https://localhost///evil.example/x' ],
     [ 'https://localhost/\\evil.example/x' ],
     [ 'https://localhost/\\/evil.example/x' ],
     [ 'https://localhost\\evil.example/x' ],
     [ "https://localhost/\t/evil.example/x" ],
     [ "https://localhost/ /evil.example/x" ],
     [ "https://localhost/\x01x" ],
     [ "https://localhost/\x7fx" ],
     [ "https://localhost/\xc3\xbc" ],
     [ 'https://localhost/%2Fevil.example/x' ],
     [ 'https://localhost/%2fevil.example/x' ],
     [ 'https://localhost/%5Cevil.example/x' ],
     [ 'https://localhost/%09/evil.example/x' ],
     [ 'https://localhost/%0d%0aLocation:x' ],
     [ 'https://localhost/%00' ],
     [ 'https://localhost/%252Fevil.example/x' ],
     [ 'https://localhost/%2e%2e/evil' ],
     [ 'https://localhost/.//evil.example/x' ],
     [ 'https://localhost/..//evil.example/x' ],
     [ 'https://localhost/x//evil.example' ],
     [ 'https://localhost/%' ],
     [ 'https://localhost/%2' ],
     [ 'https://localhost/%zz' ],
     [ 'https://localhost/form#x' ],
     [ 'https://localhost:444/form' ],
     [ 'https://localhost.evil.example/form' ],
     [ 'https://localhost@evil.example/form' ],
     [ 'https://user@localhost/form' ],
     [ 'https://evil.example/form' ],
     [ '//localhost/form' ],
     [ '/form' ],
     [ 'javascript:alert(1)' ],
     [ 'ftp://localhost/form' ],
     [ 'about:blank' ],
     [ '' ])
{
    my ($referer, $path) = @$_;

    is_deeply(pending_page($referer), [ defined $path ? ($path, $path) : () ],
              '... leads to ' . ($path // 'nothing'));
}

# One style for all pages, that a policy may name by its hash.
{
    my %style = map {
        my ($style) = refused($_, place($_), headers => [ "Accept: $firefox" ])
                      ->{body} =~ m{<style>(.*?)</style>}s;
        (sha256_base64($style =~ s/\r\n/\n/gr) => 1)
    } sort keys %default;

    my ($hash) = keys %style;
    is(keys %style, 1, 'all pages have the same style');

    ok(index(text('docs/refusals.md'), "'sha256-$hash='") > 0, '... whose hash docs/refusals.md tells')
        or diag("'sha256-$hash='");
}


# --- idempotency_docs --------------------------------------------------------

for my $why (sort keys %every) {
    for my $accept ('*/*', $html) {
        my $r = refused($why, '/docs' . ($every{$why} == 400 ? '' : place($why) =~ s{/x}{}r),
                        headers => [ "Accept: $accept" ]);

        is(told($r), "$every{$why} $why", "idempotency_docs: $why, $accept");
        is($r->header('Link') // '',
           '<https://example.com/idempotency>; rel="describedby"', '... Link');

        next if $accept eq $html;

        is(json($r)->{type}, 'https://example.com/idempotency#' . lc $why,
           '... type');
    }
}

ok(!$n->post('/docs?id=nolink', key => 'nolink')->has('Link'),
   'no Link on a response that is no refusal');


# --- idempotency_status ------------------------------------------------------

my %code = (CONFLICT => 422, IN_PROGRESS => 425, NOT_KEPT => 410,
            MISSING => 428, MALFORMED => 418);

for my $why (sort keys %code) {
    my $r = refused($why, '/codes');

    is(told($r), "$code{$why} $why", "idempotency_status: $why");
    cmp_ok(json($r)->{status}, '==', $code{$why}, '... in the document too');
}

is(told(refused('CONFLICT', '/some-codes')), '422 CONFLICT',
   'one code is set');
is(told(refused('IN_PROGRESS', '/some-codes')), '409 IN_PROGRESS',
   '... the others keep their defaults');
is(told(refused('MISSING', '/some-codes')), '400 MISSING', '... all of them');
is(told(refused('MALFORMED', '/some-codes')), '400 MALFORMED',
   '... all of them');


# --- error_page --------------------------------------------------------------

for my $why (sort keys %default) {
    my $r = refused($why, '/page');

    is($r->{status} . ' ' . $r->{body}, "$default{$why} a page of ours\n",
       "error_page with a file: $why");
    is($r->header('X-Status'), $why, '... the variable still says it');
}

is(refused('CONFLICT', '/ok')->{status}, 202, 'error_page with another status');

for my $why (grep { $_ ne 'NOT_KEPT' } sort keys %default) {
    is(refused($why, '/named')->{status}, 460,
       "error_page with a named location: $why");

    my $r = refused($why, '/proxied');
    is("$r->{status} $r->{body}", "$default{$why} page",
       "error_page with a proxied location: $why");
}

cmp_ok(executions('page'), '==', 4, '... asked once for each');

is(refused('CONFLICT', '/codes-page')->{body}, "a page of ours\n",
   'error_page for a status that was set');

# An API's own shape: the variables are still there behind the redirect.

for my $why (sort keys %default) {
    for my $path ('/shape', $why eq 'NOT_KEPT' ? () : '/shape/uri') {
        my $r = refused($why, $path);
        my $p = json($r);

        is(told($r), "$default{$why} $why", "a shape of its own: $path, $why");
        is(type_of($r), 'application/json', '... is JSON');
        is($p->{error}{code}, lc $why, '... its name');
        is($p->{error}{message}, json(refused($why, place($why)))->{detail},
           '... its sentence');
        is($r->header('Retry-After'), $why eq 'IN_PROGRESS' ? 1 : undef,
           '... and Retry-After');
    }
}

{
    my $r = refused('CONFLICT', '/shape/dry');
    is(told($r), '200 CONFLICT_DRY_RUN', 'a dry run refuses nothing');
    ok(!$r->has('X-Refusal') && !$r->has('X-Detail'), '... so that it has no name');
}

# error_page must not touch what an upstream says by itself, first or again.
{
    my @r = map { $n->post('/page?id=own&status=409', key => 'own') } 1, 2;

    is(join(', ', map { told($_) } @r), '409 NEW, 409 REPLAYED',
       "an upstream's own 409 in a location with error_page 409");
    is($r[0]{body}, "exec=1 id=own\n", '... as it is');
    is($r[1]{body}, $r[0]{body}, '... also when replayed');
}

# What error_page made of a refusal is no outcome of the token.
{
    my $uri = '/proxied?id=clean';

    is(told($n->post($uri, key => 'clean', body => 'one')), '200 NEW', 'one');
    is(told($n->post($uri, key => 'clean', body => 'other')), '409 CONFLICT',
       'another, with a proxied page');

    my $r = $n->post($uri, key => 'clean', body => 'one');
    is(told($r) . ' ' . $r->{body}, "200 REPLAYED exec=1 id=clean\n",
       'the first is unharmed');
}


# --- a refusal is not recorded -----------------------------------------------

{
    my $uri = '/reject?id=trace';

    is(told($n->post($uri, key => '"trace', body => 'b')), '400 MALFORMED',
       'a malformed key');
    is(told($n->post($uri, body => 'b')), '400 MISSING', 'no key');
    is(told($n->post($uri, key => 'trace', body => 'b')), '200 NEW',
       'a good key after both');
    is(told($n->post($uri, key => 'trace', body => 'c')), '409 CONFLICT',
       'a conflict');
    is(told($n->post($uri, key => 'trace', body => 'c')), '409 CONFLICT',
       '... is one again, not replayed');
    is(told($n->post($uri, key => 'trace', body => 'b')), '200 REPLAYED',
       '... and the outcome is as it was');
    is(executions('trace'), 1, 'executed once');

    $uri = '/x?id=pending&gate=1';
    my $c = $n->start('POST', $uri, key => 'pending', body => 'b');
    held('pending');
    is(told($n->post($uri, key => 'pending', body => 'b')), '409 IN_PROGRESS',
       'pending') for 1, 2;
    go('pending');
    is(told($c->response), '200 NEW', 'the owner ends');
    is(told($n->post($uri, key => 'pending', body => 'b')), '200 REPLAYED',
       "the owner's response is replayed, no refusal");
    is(executions('pending'), 1, 'executed once');

    $n->post('/small?id=kept', key => 'kept');
    is(told($n->post('/small?id=kept', key => 'kept')), '409 NOT_KEPT',
       'not kept, again and again') for 1 .. 3;
    is(executions('kept'), 1, 'executed once');
}


# --- nothing is echoed unescaped ---------------------------------------------

my $evil = '<script>alert(1)</script>"\'&';

for my $uri ("/reject?id=e1&x=$evil",
             '/reject/<b>"q"</b>',
             '/reject/%3Cscript%3Ealert(1)%3C/script%3E',
             '/reject/%22%5C%01%0A%0D%09%7F',
             '/reject/%00',
             "/reject/\\\"\\",
             "/reject/\xff\xfe\xc3\x28?\xf0\x9f\x92\xa9",
             '/reject/%ff%fe?%ed%a0%80',
             "/reject?\x7f\x01\x1f",
             "/reject?</title></html><!--",
             '/reject?' . '"<' x 10000)
{
    (my $name = substr $uri, 0, 40) =~ s/([^ -~])/sprintf '\\x%02x', ord $1/ge;

    for my $accept ('*/*', $html) {
        my $r = $n->post($uri, headers => [ "Accept: $accept" ]);

        # nginx itself refuses some: then there is nothing of ours
        unless ($r && $r->has('X-Status')) {
            is($r && $r->{status}, 400, "$name is nothing for nginx");
            next;
        }

        is(told($r), '400 MISSING', "$name, $accept");
        is($r->header('Content-Length'), length $r->{body}, '... whole');
        unlike($r->{head} =~ s/\r\n//gr, qr/[^ -~]/, '... a clean head');

        if ($accept eq $html) {
            my $page = $r->{body} =~ s{<style>.*?</style>}{}sr;
            unlike($page, qr/[^ -~\r\n]/, '... no control or broken character');
            unlike($page, qr{<script|<b>|<!--}i, '... no markup');
            is(() = $page =~ m{</html>}gi, 1, '... one page');

        } else {
            is(join(' ', sort keys %{json($r)}),
               'detail instance retryable status title type',
               '... sound JSON');
            ok((json($r)->{instance} // '')
               =~ qr{^[\w:/?#\[\]@!\$&'()*+,;=%.~-]+$}a,
               '... whose instance is a URI reference');
        }
    }
}

for my $accept ('*/*', $html) {
    my %o = (headers => [ "Accept: $accept" ], body => $evil);

    for my $r ($n->post('/x?id=e2', key => "\"$evil", %o),
               (map { $n->post('/x?id=e3', key => $evil, %o, body => $_) }
                    "$evil $accept", $evil)[1])
    {
        like(told($r), qr/^400 MALFORMED|^409 CONFLICT/,
             'a key and a body with markup');
        unlike($r->{body}, qr/alert/, '... nothing of them comes back');
    }
}


# --- the connection after a refusal ------------------------------------------

for my $body ('b', 'b' x 300000) {
    for my $chunked (0, 1) {
        my $name = length($body) . ($chunked ? ' bytes, chunked' : ' bytes');
        my %o = (body => $body, chunked => $chunked);

        $id++;
        my $uri = "/reject?id=$id";
        is(told($n->post($uri, key => $id, body => 'first')), '200 NEW',
           "keepalive, $name");

        # each refusal with the next request right behind it
        my $c = $n->connect;
        $c->send(message('POST', $uri, %o)
                 . message('POST', $uri, key => '"', %o)
                 . message('POST', $uri, key => $id, %o)
                 . message('POST', $uri, key => $id, body => 'first')
                 . message('GET', $uri, close => 1));

        is(join(', ', map { told($c->response('POST')) } 1 .. 5),
           '400 MISSING, 400 MALFORMED, 409 CONFLICT, 200 REPLAYED, 200 -',
           '... all requests of a pipeline are answered');
        ok($c->closed, '... and nothing is left');
        is(executions($id), 2, '... executed once, and the GET');
    }
}

{
    # a refusal that needs no body does not wait for it, nor lose its place
    my $c = $n->connect;
    $c->{method} = 'POST';
    $c->send("POST /reject?id=half HTTP/1.1\r\nHost: localhost\r\n"
             . "Content-Length: 10\r\n\r\n12345");
    is(told($c->response), '400 MISSING', 'half a body');
    $c->send("67890" . message('POST', '/reject?id=half', key => 'half',
                               body => 'b'));
    is(told($c->response), '200 NEW', '... the rest of it, the next request');
}

{
    my $r = $n->post('/reject', version => '1.0');
    is(told($r), '400 MISSING', 'HTTP/1.0');
    is(length $r->{body}, $r->header('Content-Length'), '... whole');
}

{
    my $url = 'http://127.0.0.1:' . $n->port(1) . '/x?id=h2';
    my @h2 = ('--http2-prior-knowledge', '-d', 'b');

    # no body: curl takes an answer that is quicker than its body for an error
    my $r = $n->curl('--http2-prior-knowledge', '-X', 'POST', $url);
    is(told($r), '400 MISSING', 'HTTP/2');
    is($r->{version}, 'HTTP/2', '... it is');
    is(json($r)->{status}, 400, '... whole');
    is(told($n->curl(@h2, '-H', 'Idempotency-Key: h2', $url)), '200 NEW',
       'HTTP/2: a good one');

    $r = $n->curl('--http2-prior-knowledge', '-X', 'POST', '-H', 'Accept: text/html',
                  '-e', $url, $url);
    like($r->{body}, qr{href="/x\?id=h2"}, 'HTTP/2: a page with a way back');

    $r = $n->curl(@h2, '-H', 'Idempotency-Key: h2', '-d', 'c', $url);
    is(told($r), '409 CONFLICT', 'HTTP/2: a conflict');
    is(type_of($r), $json, '... problem+json');
}

done_testing();
