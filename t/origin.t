#!/usr/bin/perl

# A replay is sent with the settings of the location that made the response,
# where an internal redirect had led to another than the request's own; if
# that location has gone, it is not sent.

use lib 't/lib';
use Idempotency;

my $lua = has_module('ngx_http_lua_module') && has_module('ndk_http_module');

my $ssi = '<!--#echo var="request_method" -->[<!--#echo var="uri" -->]';

my $locations = ($lua ? <<'EOL' : '') . <<'EOC';
    location /exec { content_by_lua_block { ngx.exec("/page/exec", "a=b") } }
EOL
    root $TEST_NGINX_ROOT/html;
    add_header X-Own "server $uri";
    error_log $TEST_NGINX_ROOT/logs/error.log info;

    # the application, whose own responses have SSI
    location / { ssi on; ssi_types *; add_header X-Own "app";
                 proxy_pass http://$TEST_NGINX_BACKEND; }

    location ~ ^/stored/(.+)\.doc$ {
        internal;
        add_header Content-Disposition "attachment; filename=$1";
        add_header Content-Security-Policy "default-src 'none'" always;
        add_header X-Own "stored $uri?$args $request_method $idempotency_status";
        types { }
        default_type application/msword;
    }
    location /stored/ {
        internal;
        add_header X-Own "plain $uri";
        location /stored/deep/ {
            internal;
            add_header X-Own "deep $uri";
            if ($arg_if) { add_header X-Own "if $uri"; }
            if ($arg_other) { add_header X-Own "other $uri"; }
            limit_except GET { deny all; }
        }
        location = /stored/deep/exact.txt { add_header X-Own exact; }
        location ^~ /stored/prefix/ { add_header X-Own prefix; }
    }
    location /stored-ssi/ { internal; ssi on; ssi_types *; add_header X-Own ssi; }

    # two of one name: the first one is that which is found
    location ~ /twin { add_header X-Own "first"; }
    location ~ /twin { add_header X-Own "second"; }
    location ~* /TWIN2 { add_header X-Own "insensitive"; }
    location ~ /TWIN2 { add_header X-Own "sensitive"; }

    # a usual PHP
    location /dir/ { index index.app; add_header X-Own dir; }
    location ~ \.app$ { add_header X-Own "script $uri";
                        proxy_pass http://$TEST_NGINX_BACKEND$uri?$args; }

    location /error/ {
        proxy_intercept_errors on;
        error_page 404 /page/$arg_id.html;
        error_page 410 = @gone;
        error_page 422 = /stored/plain.txt;
        add_header X-Own error always;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
    location /page/ {
        add_header X-Own "page $uri" always;
        proxy_pass http://$TEST_NGINX_BACKEND/p?noexec=1&body=page-$uri;
    }
    location @gone {
        add_header X-Own "named $request_method" always;
        sub_filter gone went;
        sub_filter_types *;
        rewrite ^ /g?noexec=1&body=gone&status=203? break;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
    location /try/ { try_files /none @gone; }
    location /zipped/ {
        internal;
        alias $TEST_NGINX_ROOT/html/stored/;
        gzip on; gzip_types *; gzip_min_length 1; gzip_proxied any;
        charset utf-8; charset_types *;
    }
EOC

my %o = (
    modules => [$lua ? qw(ndk_http_module ngx_http_lua_module) : ()],
    files => { map({ ("html/stored/$_" => $ssi) } qw(a.doc plain.txt twin
               deep/x.txt deep/exact.txt prefix/x.txt)),
               'html/dir/index.app' => '',
               'html/stored-ssi/x' => $ssi, 'html/twin' => $ssi,
               'html/TWIN2' => $ssi },
    http => <<'EOC',
    idempotency zone=z;
    server {
        listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1;
        server_name localhost;
        location / {
            add_header X-Own "other server";
            proxy_pass http://$TEST_NGINX_BACKEND;
        }
        location /stored/ { internal; add_header X-Own "other server's stored"; }
    }
EOC
    server => $locations . 'location /figures/ { idempotency_api; }',
);

my $n = nginx(%o);


# The status and the header lines that locations add.

sub own {
    my ($r) = @_;

    return join '|', $r->{status}, map { $r->header($_) // '-' }
           qw(X-Own Content-Disposition Content-Security-Policy);
}


sub post {
    my ($uri, $key, %o) = @_;

    return $n->post($uri, key => $key, body => 'b', %o,
                    headers => ['Cookie: me=1', @{$o{headers} // []}]);
}


# --- each way to another location -------------------------------------------

sub accel { return '/x?ct=text/plain&h=X-Accel-Redirect:%20' . $_[0] }

my @case = (
    ['a file of a location with a pattern', accel('/stored/a.doc?q=1'),
     '200|stored /stored/a.doc?q=1 GET NEW|attachment; filename=a'
     . "|default-src 'none'"],
    ['a file', accel('/stored/plain.txt'), '200|plain /stored/plain.txt|-|-'],
    ['a file of a nested location', accel('/stored/deep/x.txt'),
     '200|deep /stored/deep/x.txt|-|-'],
    ['an if block there', accel('/stored/deep/x.txt?if=1'),
     '200|if /stored/deep/x.txt|-|-'],
    ['the other if block', accel('/stored/deep/x.txt?other=1'),
     '200|other /stored/deep/x.txt|-|-'],
    ['an exact location', accel('/stored/deep/exact.txt'), '200|exact|-|-'],
    ['a prefix location', accel('/stored/prefix/x.txt'), '200|prefix|-|-'],
    ['the first of two', accel('/twin'), '200|first|-|-'],
    ['an insensitive one of two', accel('/TWIN2'), '200|insensitive|-|-'],
    ['a file with SSI', accel('/stored-ssi/x'), '200|ssi|-|-',
     qr/^GET\[\/stored-ssi\/x\]\z/],
    ['an error page', '/error/x?id=e&status=404', '404|page /page/e.html|-|-',
     qr/^page-\/page\/e\.html\z/],
    ['a named location', '/error/x?status=410', '203|named POST|-|-',
     qr/^went\z/],
    ['an error page that is a file', '/error/x?status=422',
     '200|plain /stored/plain.txt|-|-'],
    ['try_files', '/try/x', '203|named POST|-|-', qr/^went\z/],
    ['index', '/dir/?id=i', '200|script /dir/index.app|-|-', qr/^exec=1 id=i/],
    $lua ? ['ngx.exec', '/exec', '200|page /page/exec|-|-', qr/^page-/] : (),
);

for (@case) {
    my ($name, $uri, $own, $body) = @$_;
    my ($first, @again) = map { post($uri, $name) } 1 .. 3;

    is(own($first), $own, "$name: its header");
    like($first->{body}, $body // qr/^\Q$ssi\E\z/, "$name: its body");

    for my $r (@again) {
        ok($r->replayed, "$name: replayed");
        is_deeply([ own($r), $r->{body}, $r->header('Content-Type') ],
                  [ $own =~ s/ NEW/ REPLAYED/r, $first->{body},
                    $first->header('Content-Type') ], '... as it was');
    }
}

{
    # filters act for the client that asks now
    my @r = map { post(accel('/zipped/plain.txt'), 'zipped', headers => $_) }
            ['Accept-Encoding: gzip'], ['Accept-Encoding: gzip'], [];
    is_deeply([ map { $_->header('Content-Encoding') // '-' } @r ],
              ['gzip', 'gzip', '-'], 'gzip: where the client takes it');
    is($_->header('Content-Type'), 'text/plain; charset=utf-8',
       'charset: of that location') for @r;
    is($r[1]{body}, $r[0]{body}, 'gzip: the same');
    is($r[2]{body}, $ssi, 'gzip: and without');

    # who waits
    my $w = accel('/stored/a.doc') . '&gate=1&id=waits';
    my @c = $n->racing(sub {
        map { $n->start(POST => $w, key => 'waits', body => 'b') } 1, 2;
    }, count => 1);
    held('waits');
    go('waits');
    is(own($_->response) =~ s/ (?:NEW|WAITED)\|/|/r, '200|stored /stored/a.doc? '
       . "GET|attachment; filename=a|default-src 'none'", 'a waiter') for @c;

    # what is asked for at the other server: where nothing has led elsewhere,
    # the settings of now; else those of a location of that name, if it has one
    for (['here', '/x?body=here', "1|200|other server|-|-"],
         ['two', accel('/stored/plain.txt') . '&id=two',
          "1|200|other server's stored|-|-"],
         ['none', accel('/stored/deep/x.txt') . '&id=none', '|409|-|-|-'])
    {
        my ($key, $uri, $is) = @$_;

        post($uri, $key);
        my $r = post($uri, $key, port => $n->port(1));
        is($r->replayed . '|' . own($r), $is, "at another server: $key");
        like($r->{body}, qr/not_kept/, '... not kept') if $is =~ /409/;
    }
}


# --- over a reload ----------------------------------------------------------

sub over {
    my ($name, $change, $gone) = @_;

    local $_ = $o{server};
    my $before = $_;
    $change->();
    isnt($_, $before, "$name: a change");

    ok($n->reload(server => $_), "$name: reloaded");

    for my $c (@case) {
        my ($case, $uri, $own) = @$c;
        my $r = post($uri, $case);
        my $is_gone = $gone && $case =~ $gone;

        is($r->replayed . '|' . ($is_gone ? $r->{status} : own($r)),
           $is_gone ? '|409' : '1|' . $own =~ s/ NEW/ REPLAYED/r,
           "$name: $case");
        ok($r->{body} =~ /not_kept/ && $r->{body} !~ /request_method/,
           "$name: $case: nothing of it") if $is_gone;
    }
}

over('others come and go', sub {
    s/(?=location \/zipped)/location \/new { } location ~ new { }/;
    s/location \/zipped.*?^    }//ms;
    s/(?=location \/ )/location ~ another { }/;
});

# try_files chooses before the claim: nothing leads elsewhere there
over('renamed', sub {
    s/\@gone/\@away/g;
    s/(location ~ \^\/stored\/)\(\.\+\)/$1(.*)/;
    s/location = (\/stored\/deep\/exact.txt)/location $1/;
}, qr/pattern|named location|exact/);
like($n->log, qr/the location of a recorded response no longer exists/, 'the log says so');

over('back again', sub { s/$/ / });
over('one if less', sub { s/if \(\$arg_other\).*// }, qr/if block/);


# --- a dry run says what it would be ----------------------------------------

$n = nginx(%o, server => $o{server} . <<'EOC');
    location /dry { idempotency_dry_run on; add_header X-Own dry;
                    proxy_pass http://$TEST_NGINX_BACKEND; }
    location /after/ { internal; alias $TEST_NGINX_ROOT/html/stored/;
                       add_header X-Own "after $idempotency_status"; }
EOC

is(post('/dry?h=X-Accel-Redirect:%20/after/plain.txt', 'dry')->header('X-Own'),
   "after ${_}_DRY_RUN", "a dry run: $_") for qw(NEW REPLAYED);

done_testing();
