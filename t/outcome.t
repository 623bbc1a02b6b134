#!/usr/bin/perl

# SPEC, "Which outcome is recorded": the rows of the table in
# src/request/ngx_http_idempotency_outcome.c, each by what really happens.

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;
use Stress;

my $dead = dead_port();
my $stuck = stuck_port();

# X-To says where a request goes, so that the same token may find one upstream
# dead and the next one alive. Headers are no part of what it is bound to.

my $fcgi_conf = join '', map { "fastcgi_param $_;\n" }
                         'QUERY_STRING $query_string',
                         'REQUEST_METHOD $request_method',
                         'REQUEST_URI $request_uri',
                         'CONTENT_LENGTH $content_length';

my $locations = <<'EOC';
    idempotency zone=z;
    idempotency_methods POST PUT;

    add_header X-Status $idempotency_status always;

    proxy_connect_timeout 500ms;

    location / { proxy_pass $by://$http_x_to$request_uri; }
    location /plain { idempotency off;
                      proxy_pass http://$TEST_NGINX_BACKEND; }
    location /retry { idempotency_in_doubt retry;
                      proxy_pass http://$http_x_to$request_uri; }
    location /unbuffered { proxy_buffering off;
                           proxy_pass http://$TEST_NGINX_BACKEND; }
    location /1.1 { proxy_http_version 1.1;
                    proxy_pass http://$TEST_NGINX_BACKEND; }
    location /resolve { resolver 127.0.0.1:$TEST_NGINX_RAND_PORT_2 ipv6=off;
                        resolver_timeout 200ms;
                        proxy_pass http://$http_x_to$request_uri; }
    location /2xx { idempotency_keep 2xx;
                    proxy_pass http://$TEST_NGINX_BACKEND; }
    location /list { idempotency_keep 200 404 5xx;
                     proxy_pass http://$TEST_NGINX_BACKEND; }
    location /any { idempotency_keep any;
                    proxy_pass http://$TEST_NGINX_BACKEND; }
    location /default { idempotency_keep default;
                        proxy_pass http://$TEST_NGINX_BACKEND; }
    location /page { proxy_intercept_errors on;
                     error_page 429 503 =200 /sorry;
                     error_page 404 =429 /sorry;
                     error_page 500 =403 /sorry;
                     proxy_pass http://$TEST_NGINX_BACKEND;

                     location /page/2xx {
                         idempotency_keep 2xx;
                         proxy_pass http://$TEST_NGINX_BACKEND;
                     } }
    location = /sorry { internal; return 200 sorry; }
    location /2xx-to { idempotency_keep 2xx;
                       proxy_pass http://$http_x_to$request_uri; }
    location /2xx-retry { idempotency_keep 2xx; idempotency_in_doubt retry;
                          proxy_pass http://$http_x_to$request_uri; }
    location /small { idempotency_max_response 1k;
                      proxy_http_version 1.1;
                      proxy_pass http://$TEST_NGINX_BACKEND; }
    location /fastcgi { include $TEST_NGINX_ROOT/fcgi.conf;
                        fastcgi_pass $http_x_to; }
    location /stale { proxy_cache cache;
                      proxy_cache_key stale;
                      proxy_cache_methods POST;
                      proxy_cache_use_stale error timeout;
                      proxy_pass http://$http_x_to$request_uri;

                      location /stale/retry {
                          idempotency_in_doubt retry;
                          proxy_pass http://$http_x_to$request_uri;
                      }

                      location /stale/2xx {
                          idempotency_keep 2xx;
                          proxy_pass http://$http_x_to$request_uri;
                      } }
    location /static { root $TEST_NGINX_ROOT/html; }
    location /key { idempotency_key $http_other_key;
                    proxy_pass http://$TEST_NGINX_BACKEND; }
    location /bypass { idempotency_bypass $http_x_bypass;
                       proxy_pass http://$TEST_NGINX_BACKEND; }
    location /body { client_max_body_size 1k;
                     proxy_pass http://$TEST_NGINX_BACKEND; }
    location /into { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /limited { internal; limit_req zone=limit;
                        proxy_pass http://$TEST_NGINX_BACKEND; }
    location /fallback { proxy_intercept_errors off;
                         error_page 502 504 = @other;
                         proxy_pass http://$http_x_to$request_uri; }
    location @other { proxy_pass http://$http_x_then$request_uri; }
EOC

my $n = nginx(zone => 0, files => { 'fcgi.conf' => $fcgi_conf,
                                    'html/static' => 'static',
                                    'html/static-dir/x' => 'x' },
              http => <<EOC, server => $locations);
    idempotency_zone zone=z:8m;
    proxy_read_timeout 10m;
    fastcgi_read_timeout 10m;

    upstream dead { server 127.0.0.1:$dead; }
    upstream down { server 127.0.0.1:$dead down; }
    upstream one { zone one 64k; server \$TEST_NGINX_BACKEND max_conns=1; }
    upstream refused_first { server 127.0.0.1:$dead max_fails=0;
                             server \$TEST_NGINX_BACKEND max_fails=0 backup; }
    upstream sent_first { server \$TEST_NGINX_BACKEND max_fails=0;
                          server 127.0.0.1:$dead max_fails=0 backup; }
    # where nobody speaks TLS
    map \$http_x_to \$by {
        default http;
        127.0.0.1:\$TEST_NGINX_RAND_PORT_1 https;
    }

    limit_req_zone \$server_name zone=limit:64k rate=1r/m;
    proxy_cache_path \$TEST_NGINX_ROOT/cache keys_zone=cache:1m;

    server {
        listen 127.0.0.1:\$TEST_NGINX_RAND_PORT_1;
        return 200 plain;
    }

    # for those who are not to get an answer
    server {
        listen 127.0.0.1:\$TEST_NGINX_RAND_PORT_3;
        server_name localhost;
        proxy_read_timeout 100ms;
        fastcgi_read_timeout 100ms;
        $locations
    }
EOC

my $backend = '127.0.0.1:' . backend();
my $tls = '127.0.0.1:' . $n->port(1);

# One request of a token. %o: at (a location), more (for the backend), to,
# method, then, hasty (for how long it takes).

sub try_it {
    my ($id, %o) = @_;

    my $uri = ($o{at} // '/x') . "?id=$id" . ($o{more} ? "&$o{more}" : '');
    my @h = ('X-To: ' . ($o{to} // $backend));

    push @h, "X-Then: $o{then}" if $o{then};
    push @h, @{$o{headers} // []};

    return $n->request($o{method} // 'POST', $uri, key => $id,
                       body => $o{body} // 'b', headers => \@h,
                       port => $n->port($o{hasty} ? 3 : 0));
}


# What a row promises: that the token is released, done, in doubt, not kept.
# "to" is where the first one goes, "count" what it executes.

sub row {
    my ($name, $is, $status, %o) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    (my $id = $name) =~ s/\W+/-/g;
    my $count = $o{count} // 1;
    my $first = try_it($id, %o);

    # the upstream may see it later than its client is told
    until_true { executions($id) >= $count };

    is(status_of($first), "$status NEW", "$name: the first");
    is(executions($id), $count, "$name: executed $count times");

    # later attempts find the upstream alive
    my $alive = $o{alive} // $backend;
    my @again = map { try_it($id, %o, to => $alive, then => $alive) }
                1 .. ($is eq 'released' ? 1 : 2);

    if ($is eq 'released') {
        is($again[0]->header('X-Status'), 'NEW', "$name: released");
        is(executions($id), $count + 1, "$name: a retry executes");
        return $first;
    }

    is(executions($id), $count, "$name: a repeat does not execute");

    if ($is eq 'not kept') {
        for (@again) {
            is(status_of($_) . ' ' . problem($_), '409 NOT_KEPT not_kept',
               "$name: not kept");
            like($_->{body}, qr/\b$status\b/, "$name: it names the status");
        }

    } else {
        is(status_of($_), "$status REPLAYED", "$name: replayed") for @again;
        same_outcome($first, $_, "$name: the same") for @again;
    }

    return $first;
}


# --- final responses --------------------------------------------------------

row("a response of $_", 'done', $_, more => "status=$_")
    for 200, 201, 204, 301, 303, 400, 402, 404, 405, 406, 408, 409, 410, 412,
        418, 420, 422, 423, 424, 426, 428, 431, 451, 500, 502, 503, 504, 511,
        599;

# those whose meaning is that nothing was carried out

row("a response of $_", 'released', $_, more => "status=$_")
    for 401, 403, 407, 421, 425, 429;

my $after = 'h=Retry-After:%20120';

row("$_ with Retry-After", 'released', $_, more => "status=$_&$after")
    for 401, 409, 429, 503;
row("$_ with Retry-After", 'done', $_, more => "status=$_&$after")
    for 200, 202, 301, 404, 500, 502, 504;
row("$_ with another header", 'done', $_,
    more => "status=$_&h=X-Retry-After:%20120&h=Retry-Afte:%20120")
    for 409, 503;
row("503 with Retry-After, $_->[1]", 'done', 503,
    more => "status=503&$after&h=$_->[0]")
    for ['Via:%201.1%20cache', 'from a proxy'],
        ['x-varnish:%20123', 'from Varnish'],
        ['Age:%200', 'from a cache'];
row('409 with Retry-After, from a proxy', 'released', 409,
    more => "status=409&$after&h=Via:%201.1%20proxy");
row('503 with Retry-After by a date', 'released', 503,
    more => 'status=503&h=retry-after:%20Fri,%2031%20Dec%202027%2023:59:59%20'
            . 'GMT');
row("idempotency_keep any, $_", 'done', $_, more => "status=$_&$after",
    at => '/any') for 401, 403, 409, 429, 503;
row("idempotency_keep default, said, $_->[0]", $_->[1], $_->[0],
    more => "status=$_->[0]", at => '/default')
    for [200, 'done'], [403, 'released'], [500, 'done'];

# The upstream's status counts, and not what was sent in its place.

row("an error page of $_->[1] for $_->[0] $_->[3]", $_->[2], $_->[1],
    more => "status=$_->[0]&$_->[3]", at => '/page')
    for [429, 200, 'released', ''], [503, 200, 'released', $after],
        [503, 200, 'done', "$after&h=Age:%201"], [503, 200, 'done', ''],
        [404, 429, 'done', ''], [500, 403, 'done', ''];
row("idempotency_keep 2xx, an error page of $_->[1] for $_->[0]", $_->[2],
    $_->[1], more => "status=$_->[0]", at => '/page/2xx')
    for [503, 200, 'released'], [404, 429, 'released'];


row('an upstream that says that it could not', 'done', 502,
    more => 'status=502', at => '/retry');

row("idempotency_keep 2xx, $_", 'done', $_, more => "status=$_", at => '/2xx')
    for 200, 201, 299;
row("idempotency_keep 2xx, $_", 'released', $_, more => "status=$_",
    at => '/2xx') for 303, 400, 404, 500;
row("idempotency_keep 200 404 5xx, $_", 'done', $_, more => "status=$_",
    at => '/list') for 200, 404, 500, 503;
row("idempotency_keep 200 404 5xx, $_", 'released', $_, more => "status=$_",
    at => '/list') for 201, 400, 403;


# --- not one byte was sent --------------------------------------------------

my %none = (count => 0);
my %fastcgi = (at => '/fastcgi', alive => $ENV{TEST_NGINX_FASTCGI});

row('connect refused', 'released', 502, %none, to => 'dead');
row('connect timed out', 'released', 504, %none, to => "127.0.0.1:$stuck");
row('no live upstream', 'released', 502, %none, to => 'down');
row('no resolver', 'released', 502, %none, to => 'no.such.host.invalid');
row('a resolver that does not answer', 'released', 502, %none,
    to => 'no.such.host.invalid', at => '/resolve');
row('a TLS handshake that fails', 'released', 502, %none, to => $tls);
row('connect refused, retry', 'released', 502, %none, to => 'dead',
    at => '/retry');
row('connect refused, idempotency_keep 2xx', 'released', 502, %none,
    to => 'dead', at => '/2xx-to');
row('fastcgi, connect refused', 'released', 502, %none,
    to => "127.0.0.1:$dead", %fastcgi);

# a limit in the choice of the peer

{
    my $busy = $n->start('POST', '/x?id=busy&gate=1', key => 'busy',
                         body => 'b', headers => ['X-To: one']);
    held('busy');
    is(status_of(try_it('limit', to => 'one')), '502 NEW', 'max_conns reached');
    is(executions('limit'), 0, '... not executed');
    go('busy');
    is(status_of($busy->response), '200 NEW', '... the busy one ends');
    is(status_of(try_it('limit', to => 'one')), '200 NEW', '... released');
    $busy->close;
}


# --- sent, and no answer ----------------------------------------------------

my %silent = (
    'timed out'        => [ 504, more => 'gate=1', hasty => 1 ],
    'closed'           => [ 502, more => 'close=1' ],
    'reset'            => [ 502, more => 'rst=1' ],
    'an invalid header' => [ 502, more => 'raw='
                            . 'HTTP/1.1%20200%20OK%0D%0A%01bad:%201%0D%0A%0D%0A' ],
    'a header too big' => [ 502, more => 'raw=HTTP/1.1%20200%20OK%0D%0AX:%20'
                            . 'y' x 6000 . '%0D%0A%0D%0A' ],
    'half a header'    => [ 502, more => 'raw=HTTP/1.1%20200%20OK%0D%0AX:' ],
    'timed out, another is left' => [ 504, more => 'gate=1', hasty => 1,
                                      method => 'PUT', to => 'sent_first' ],
    'closed, another is left' => [ 502, more => 'close=1', method => 'PUT',
                                   to => 'sent_first' ],
    'refused, then timed out' => [ 504, more => 'gate=1', hasty => 1,
                                   to => 'refused_first' ],
    'refused, then closed' => [ 502, more => 'close=1',
                                to => 'refused_first' ],
);

for my $what (sort keys %silent) {
    my ($status, @o) = @{$silent{$what}};

    row("sent, $what", 'in doubt', $status, @o);
    row("sent, $what, retry", 'released', $status, @o, at => '/retry');
    row("sent, $what, idempotency_keep 2xx", 'in doubt', $status, @o,
        at => '/2xx-to');
}

row('sent, closed, retry and idempotency_keep 2xx', 'released', 502,
    more => 'close=1', at => '/2xx-retry');

# The first was sent, the other answered: an outcome like any.

row('refused, then answered', 'done', 200, to => 'refused_first');
row('refused, then answered, PUT', 'done', 200, to => 'refused_first',
    method => 'PUT');

# a whole request to another upstream, by error_page

row('refused, then another upstream', 'done', 200, to => 'dead',
    then => $backend, at => '/fallback');
row('refused, then refused by another', 'released', 502, count => 0,
    to => 'dead', then => 'dead', at => '/fallback');
row('sent and closed, then refused by another', 'in doubt', 502,
    more => 'close=1', then => 'dead', at => '/fallback');
row('refused, then sent to another and closed', 'in doubt', 502, to => 'dead',
    more => 'close=1', then => $backend, at => '/fallback');

row("fastcgi, $_->[0]", 'in doubt', @$_[1 .. $#$_], %fastcgi,
    to => $fastcgi{alive})
    for ['timed out', 504, more => 'gate=1', hasty => 1],
        ['closed', 502, more => 'close=1'], ['reset', 502, more => 'rst=1'];


# a status by FastCGI counts as any

row("fastcgi, $_->[0], $_->[2]", $_->[1], $_->[0], %fastcgi,
    to => $fastcgi{alive}, more => "status=$_->[0]&$_->[2]")
    for [401, 'released', ''], [429, 'released', ''], [404, 'done', ''],
        [503, 'released', $after], [503, 'done', ''],
        [503, 'done', "$after&h=Via:%201.1%20x"];


# --- an old response in place of none ---------------------------------------

# The cache has a response of another request, and that is what the client
# gets: it says nothing about the fate of this one.

{
    my $old = try_it('old', at => '/stale',
                     more => 'body=old&h=X-Accel-Expires:%20@1');
    is(status_of($old), '200 NEW', 'a response that is old at once');

    my %stale = (
        'timed out' => [ 'in doubt', more => 'gate=1', hasty => 1 ],
        'closed'    => [ 'in doubt', more => 'close=1' ],
        'reset'     => [ 'in doubt', more => 'rst=1' ],
        'refused'   => [ 'released', to => 'dead', count => 0 ],
    );

    for my $what (sort keys %stale) {
        my ($is, @o) = @{$stale{$what}};

        for (['', $is], ['/2xx', $is], ['/retry', 'released']) {
            my ($at, $then) = @$_;
            my $name = "an old response, $what, at /stale$at";

            is(row($name, $then, 200, @o, at => "/stale$at")->{body}, 'old',
               "$name: it was that");
        }
    }
}


# --- broken off in the body -------------------------------------------------

for my $at ('/1.1', '/unbuffered') {
    for (['by length', 'size=5000&cut=2000'],
         ['by length, reset', 'size=5000&cut=2000&rst=1'],
         ['by length, at the start', 'size=5000&cut=0'],
         ['one byte short', 'size=5000&cut=4999'],
         ['in chunks', 'size=5000&te=chunked&cut=2000'],
         ['in chunks, reset', 'size=5000&te=chunked&cut=2000&rst=1'],
         ['at the end of the connection, reset',
          'size=5000&te=close&cut=2000&rst=1'])
    {
        my ($what, $more) = @$_;

        # without buffering HTTP/1.0 has no chunks to tell the end by
        next if $at eq '/unbuffered' && $more =~ /chunked/;

        my $first = row("broken off $what at $at", 'not kept', 200,
                        more => $more, at => $at);
        cmp_ok(length $first->{body}, '<', 5000, '... the first got a part');
    }
}

row('broken off, and released by idempotency_keep 2xx', 'released', 500,
    more => 'status=500&size=5000&cut=2000', at => '/2xx');

# whole, though closed early: nobody can tell
row('the end of the connection', 'done', 200, more => 'size=5000&te=close',
    at => '/1.1');


# --- over the limit ---------------------------------------------------------

for (['by length', 'size=3000'], ['in chunks', 'size=3000&te=chunked'],
     ['at the end of the connection', 'size=3000&te=close'])
{
    my ($what, $more) = @$_;
    my $first = row("over the limit $what", 'not kept', 200, more => $more,
                    at => '/small');

    is(length $first->{body}, 3000, '... passed on whole');
    ok(!$first->{broken}, '... and unbroken');
    is($first->{body}, pattern(3000, 1), '... and untouched');
}

row('just below the limit', 'done', 200, more => 'size=1024', at => '/small');


# --- what the upstream says of it -------------------------------------------

my $say = 'h=X-Accel-Idempotency:%20';

sub unsaid {
    my ($r, $name) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    ok(!$r->has('X-Accel-Idempotency'), "$name: nobody sees it")
        or diag($r->{head});
}


unsaid(row('release', 'released', 200, more => "${say}release"), 'release');
unsaid(row('release of an error', 'released', 500,
           more => "status=500&${say}release"), 'release of an error');
unsaid(row('keep', 'done', 200, more => "${say}keep"), 'keep');
unsaid(row('keep against idempotency_keep', 'done', 500,
           more => "status=500&${say}keep", at => '/2xx'), 'keep');
unsaid(row('release within idempotency_keep', 'released', 200,
           more => "${say}release", at => '/2xx'), 'release');
unsaid(row('release of what breaks off', 'released', 200,
           more => "size=5000&cut=2000&${say}release", at => '/1.1'),
       'release');
unsaid(row('release of what is over the limit', 'released', 200,
           more => "size=3000&${say}release", at => '/small'), 'release');
unsaid(row('keep of what is over the limit', 'not kept', 200,
           more => "size=3000&${say}keep", at => '/small'), 'keep');
unsaid(row('keep of what breaks off', 'not kept', 200,
           more => "size=5000&cut=2000&${say}keep", at => '/1.1'), 'keep');
unsaid(row('something else', 'done', 200, more => "${say}perhaps"),
       'something else');
unsaid(row('RELEASE', 'released', 200, more => "${say}RELEASE"), 'RELEASE');

{
    my %o = (at => '/2xx', more => "status=500&${say}keep");
    unsaid(try_it('keep-seen', %o), "keep, $_") for 'first', 'replay';

    for (['release', 'NEW'], ['keep', 'REPLAYED']) {
        my ($word, $second) = @$_;
        my %f = (at => '/fastcgi', to => $ENV{TEST_NGINX_FASTCGI},
                 more => "$say$word");
        my @r = map { try_it("fcgi-$word", %f) } 1, 2;

        is(status_of($r[0]), '200 NEW', "fastcgi, $word");
        is(status_of($r[1]), "200 $second", '... and again');
        unsaid($_, "fastcgi, $word") for @r;
    }

    # responses that are not ours to record
    my $uri = "?id=other&${say}keep";
    unsaid($n->get("/x$uri", headers => ["X-To: $backend"]), 'a GET');
    unsaid($n->post("/key$uri"), 'no key');
    unsaid($n->post("/key$uri", headers => ['Other-Key: ' . 'x' x 300]),
           'a malformed key');
    unsaid($n->post("/bypass$uri", key => 'other',
                    headers => ['X-Bypass: 1']), 'bypassed');
}


# --- refused locally behind us ----------------------------------------------

{
    for (['/static', 405], ['/static-none', 404]) {
        my ($at, $status) = @$_;
        my $first = try_it("local$status", at => $at);

        is(status_of($first), "$status NEW", "a local $status");
        same_outcome($first, try_it("local$status", at => $at),
                    '... is an outcome');
    }

    is(status_of(try_it('local403', at => '/static-dir/')), '403 NEW',
       "a local 403, $_") for 'the first', 'which released it';

    # the body's limit: nothing was claimed
    for (['by length'], ['in chunks', chunked => 1]) {
        my ($what, @how) = @$_;
        my $r = $n->post('/body?id=413', key => "413-$what",
                         body => 'b' x 2000, @how, timeout => 5);
        is($r->{status}, 413, "a body too long $what");
        is(executions('413'), 0, '... not executed');
    }

    is(status_of($n->post('/body?id=413', key => '413-by length', body => 'b')),
       '200 NEW', '... and nothing was claimed');

    # a limit behind the claim, at a location that the upstream sends it to
    my %into = (at => '/into', more => 'h=X-Accel-Redirect:%20/limited');
    is($n->post('/into?h=X-Accel-Redirect:%20/limited&id=l0')->{status}, 200,
       'a limit is used up');
    my $first = try_it('l1', %into);
    is(status_of($first), '503 NEW', '... a request is refused behind us');
    same_outcome($first, try_it('l1', %into), '... which is an outcome');
    is(executions('l1'), 1, '... executed once');
}

$n->stop;


# --- what has no effect ------------------------------------------------------

{
    my $warned = qr/\[warn\].*non_idempotent/;

    for (['proxy', 'proxy_pass http://$TEST_NGINX_BACKEND;'],
         ['fastcgi', 'fastcgi_pass $TEST_NGINX_FASTCGI;'],
         ['uwsgi', 'uwsgi_pass $TEST_NGINX_UWSGI;'],
         ['scgi', 'scgi_pass $TEST_NGINX_SCGI;'],
         ['grpc', 'grpc_pass grpc://$TEST_NGINX_BACKEND;'])
    {
        my ($name, $pass) = @$_;

        SKIP: {
            skip "no $name in this nginx", 4
                unless has_directive("${name}_next_upstream error;");

            my $next = "${name}_next_upstream error non_idempotent;";

            my ($ok, $log) = config_test(server =>
                "location / { idempotency zone=z; $next $pass }");
            ok($ok, "$name: to be executed at more than one upstream");
            like($log, $warned, '... is warned of');

            ($ok, $log) = config_test(server => "location / { $next $pass }");
            unlike($log, qr/\[warn\]/, '... but not without us');

            ($ok, $log) = config_test(server =>
                "location / { idempotency zone=z; $pass }");
            unlike($log, qr/\[warn\]/, '... nor by default');
        }
    }
}

done_testing();
