# SPEC, "Browser guard": idempotency_guard serves a small script. What the
# script does is shown in a browser, by t/browser.t.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;


my ($h2) = config_test(module => 0, server => '',
                       http => 'server { listen 127.0.0.1:'
                               . free_port() . ' http2; }');

my $n = nginx(files => { 'html/page.html' =>
                         "<html><head><title>a</title></head></html>\n" },
              http => $h2 ? <<'EOC' : '', server => <<'EOC2');
    server {
        listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1 http2;
        location / { idempotency_guard; }
    }
EOC
    # as a whole site is protected: the script is none of what it protects
    idempotency zone=z;
    idempotency_missing_key reject;
    default_type application/x-unknown;
    charset koi8-r;

    location = /idempotency-guard.js { idempotency_guard; }

    location /guards/ {
        idempotency_guard;

        location /guards/below { proxy_pass http://$TEST_NGINX_BACKEND; }
        location /guards/cached { add_header X-More 1; idempotency_guard; }
        location /guards/off { idempotency off; idempotency_guard; }
        location /guards/gzip {
            idempotency_guard;
            gzip on;
            gzip_min_length 0;
            gzip_types text/javascript;
        }
        location /guards/expr { location ~ \.js$ { idempotency_guard; } }
        location /guards/denied { deny all; idempotency_guard; }
    }

    location = /named { try_files /nothing @guard; }
    location @guard { idempotency_guard; }

    location /page.html {
        default_type text/html;
        root html;
        types { text/html html; }
        sub_filter '</head>'
                   '<script src="/idempotency-guard.js"></script></head>';
    }

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
EOC2

my $js = '/idempotency-guard.js';
my $r = $n->get($js);


# --- what it is --------------------------------------------------------------

is("$r->{status} $r->{reason}", '200 OK', 'GET');
is($r->header('Content-Type'), 'text/javascript; charset=utf-8',
   'its type, whatever types and charsets are around');
is($r->header('Content-Length'), length $r->{body}, 'its length');
is($r->header('Cache-Control'), 'public, max-age=3600', 'may be cached');
like($r->header('ETag') // '', qr/^"[\w-]+"$/, 'a strong entity tag');
ok(!$r->has('Set-Cookie'), 'no cookie');
ok(!$r->has('Idempotent-Replayed'), 'no replay');
cmp_ok(length $r->{body}, '<', 5120, 'less than 5 KB');
cmp_ok(length $r->{body}, '>', 500, 'and not nothing');

# It is the file in the tree, less comment lines and white space that doesn't
# count.
{
    open my $f, '<', "$FindBin::Bin/../src/guard/guard.js"
        or die "guard.js: $!";
    my $source = join '', map { s/^\s+|\n//gr } grep { !m{^\s*//} } <$f>;
    my $bare = $source =~ s{ *([][{}()<>=+?:|&!,;*-]) *}{$1}gr;
    is($r->{body}, $bare =~ s/;}/}/gr . "\n",
       'it is src/guard/guard.js');
}

like($r->{body}, qr/\bsubmission_token\b/, 'it knows the field');
unlike($r->{body}, qr/[^\n\x20-\x7e]/, 'ASCII only: no encoding can spoil it');
unlike($r->{body}, qr/\bstyle\b|innerHTML|outerHTML|insertAdjacentHTML
                      |\beval\b|\bFunction\b|document\.write|javascript:
                      |setAttribute\(.on|set(?:Timeout|Interval)\(\s*['"]/x,
       'nothing that a strict Content-Security-Policy forbids');
unlike($r->{body}, qr{https?://|//[a-z]}, 'nothing from elsewhere');
like($r->{body}, qr/\A\(\(\)=>\{'use strict';/,
     'a function of its own: no global names');


# --- HEAD and conditional requests -------------------------------------------

my $etag = $r->header('ETag');

sub with { return $n->get($js, headers => [@_]) }

{
    my $head = $n->request(HEAD => $js);
    is($head->{status}, 200, 'HEAD');
    is($head->{body}, '', '... has no body');
    is(join("\n", grep !/^Date:/, @{$head->{lines}}),
       join("\n", grep !/^Date:/, @{$r->{lines}}), '... the same header');

    my $same = with("If-None-Match: $etag");
    is($same->{status}, 304, 'If-None-Match with its tag');
    is($same->{body}, '', '... has no body');
    is($same->header('ETag'), $etag, '... but the tag');
    is($same->header('Cache-Control'), 'public, max-age=3600',
       '... and for how long');

    is(with("If-None-Match: $_")->{status}, 304, "If-None-Match: $_")
        for "W/$etag", "\"x\", $etag", '*';
    is(with("If-None-Match: $_")->{status}, 200, "If-None-Match: $_")
        for '"x"', $etag =~ s/"$/0"/r, $etag =~ tr/"//dr;

    is($n->request(HEAD => $js, headers => ["If-None-Match: $etag"])->{status},
       304, 'HEAD with If-None-Match');
}


# --- other methods -----------------------------------------------------------

for my $method (qw(POST PUT PATCH DELETE OPTIONS)) {
    my $c = $n->start($method, '/guards/off/x', body => 'a' x 5000);
    is($c->response->{status}, 405, $method);

    # the body is read away
    $c->{method} = 'GET';
    $c->send(message(GET => $js));
    is($c->response->{status}, 200, '... and the next request on that '
                                    . 'connection is answered');
}

is($n->request(POST => $js, body => 'a=1')->{status}, 400,
   'POST where a key is required');
is($n->request(POST => $js, body => 'a=1', key => 'k')->{status}, 405,
   'POST with a key');
ok($n->request(POST => $js, body => 'a=1', key => 'k')->replayed,
   '... is an outcome like any other');

# GET with a body, of which it makes nothing
{
    my $c = $n->start(GET => $js, body => 'a' x 5000);
    is($c->response->{body}, $r->{body}, 'GET with a body');
    $c->send(message(GET => $js));
    is($c->response->{body}, $r->{body}, '... and the next one');
}


# --- where -------------------------------------------------------------------

is($n->get($_)->{body}, $r->{body}, "at $_")
    for '/guards/', '/guards/a.js', '/guards/cached', '/guards/off',
        '/guards/expr/a.js', '/named', "$js?v=1", '/guards/gzip';
is($n->get('/guards/below?id=below')->{body}, "exec=1 id=below\n",
   'a location within is not the guard');
is($n->get('/guards/denied')->{status}, 403, 'access control comes first');
is($n->get('/guards/cached')->header('X-More'), '1', 'add_header works');

{
    my $z = $n->get('/guards/gzip', headers => ['Accept-Encoding: gzip']);
    is($z->header('Content-Encoding'), 'gzip', 'gzip works');
    is($z->header('ETag'), "W/$etag", '... with a weak tag');
    is($n->get('/guards/gzip', headers => ['Accept-Encoding: gzip',
                                           "If-None-Match: W/$etag"])
       ->{status}, 304, '... that is known again');
    is($n->get($js)->header('ETag'), $etag, '... and the other is as before');
}

like($n->get('/page.html')->{body}, qr{<script src="\Q$js\E"></script></head>},
     'sub_filter puts it into a page');

SKIP: {
    skip 'nginx without HTTP/2', 2 unless $h2;

    my $url = 'http://127.0.0.1:' . $n->port(1) . $js;
    my $h = $n->curl('--http2-prior-knowledge', $url);
    is($h->{body}, $r->{body}, 'HTTP/2');
    is($h->header('ETag'), $etag, '... the tag');
}

done_testing();
