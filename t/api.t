#!/usr/bin/perl

# docs/directives.md, idempotency_api: the page, records in pages, one record by
# its key, what may be done to it, and who may ask for all that.

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;

use IO::Socket::UNIX;
use JSON::PP qw(decode_json);

my $protected = <<'EOC';
    idempotency zone=z;

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /reject { idempotency_in_progress reject; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /eu { idempotency_scope eu; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /small { idempotency_max_response 4; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /retry { idempotency_in_doubt retry; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /idem { idempotency_methods PUT DELETE POST; idempotency_api write=on; }
    location /read/ { idempotency_api; }
    location = /idem-eu { idempotency_api; }
    location /idem-eu/ { idempotency_scope eu; idempotency_api write=on; }
    location /uuid/ { idempotency_key_format uuid; idempotency_api; }
    location /off/ { idempotency off; idempotency_api; }
    error_page 404 405 = /elsewhere;
EOC

my $n = nginx(server => $protected, workers => 2, http => "idempotency_zone zone=a/b:256k;\n");

my $records = '/idem/zones/z/records';

sub names {
    my ($r) = @_;

    my $type = $r->{body} =~ /^\{"type"/ ? decode_json($r->{body})->{type} : '';

    return "$r->{status} " . ($type =~ /^urn:idempotency:(\w+)$/ ? $1 : '-');
}

# All pages, from the first on: the rows, and how many pages there were.

sub walk {
    my ($limit, $between, $uri) = @_;

    my $next = ($uri // $records) . "?limit=$limit";
    my (@rows, $pages);

    while ($next) {
        my $r = $n->get($next);

        is($r->{status}, 200, 'a page') if $r->{status} != 200;
        push @rows, map decode_json($_), split /\n/, $r->{body};
        $pages++;
        ($next) = ($r->header('Link') // '') =~ /^<([^>]*)>; rel="next"$/;
        $between->($pages) if $between && $next;
    }

    return (\@rows, $pages);
}

sub row { return decode_json($n->get("$records?key=$_[0]")->{body}) }


# --- where it may stand -----------------------------------------------------

for (['location ~ ^/a { idempotency_api; }', 'can stand only in a location that is given'],
     ['location @a { idempotency_api; }', 'can stand only in a location that is given'],
     ['location /a { idempotency_api write=maybe; }', 'invalid parameter "write=maybe"'],
     ['location /a { idempotency_api on; }', 'invalid parameter "on"'],
     ['location /a { idempotency_api; idempotency_api; }', 'is duplicate'],
     ['idempotency_api;', 'is not allowed here'])
{
    my ($ok, $out) = config_test(server => $_->[0]);

    ok(!$ok && $out =~ /\Q$_->[1]\E/, "$_->[0]: $_->[1]") or diag($out);
}

for ('location /a { idempotency_api; }', 'location = /a/metrics { idempotency_api write=off; }') {
    my ($ok, $out) = config_test(server => $_, zone => 0);

    ok($ok, "$_, without a zone") or diag($out);
}

{
    my $none = nginx(server => 'location /a/ { idempotency_api; }', zone => 0);

    is(decode_json($none->get('/a/zones')->{body})->{zones}[0], undef, 'no zone: none is told');
    unlike($none->get('/a/metrics')->{body}, qr/zone=/, '... nor measured');
    $none->stop;
}

{
    my $alone = nginx(server => 'location /a/ { idempotency_api; }');

    is(decode_json($alone->get('/a/zones')->{body})->{zones}[0]{name}, 'z', 'a zone that nothing uses');
    is($alone->get('/a/zones/z/records')->{status}, 200, '... has no records');
    $alone->stop;
}


# --- the page, and what there is beside it ----------------------------------

{
    my $r = $n->get('/idem/');

    is($r->{status}, 200, 'the page');
    is($r->header('Content-Type'), 'text/html; charset=utf-8', '... is one');
    is($r->{body}, slurp("$FindBin::Bin/../share/page.html"), '... as it stands in the source');

    my ($policy) = $r->{body} =~ /"Content-Security-Policy" content="([^"]*)"/;

    is($r->header('Content-Security-Policy'), "$policy; frame-ancestors 'none'", 'its policy');
    is($r->header('Cache-Control'), 'no-store', 'nobody keeps it');

    my $head = $n->request('HEAD', '/idem/');

    is($head->header('Content-Length'), length $r->{body}, 'HEAD');
    is($head->{body}, '', '... without it');

    $r = $n->get('/idem');

    is($r->{status}, 301, 'without the slash');
    like($r->header('Location'), qr{/idem/$}, '... it has one');

    is(names($n->get('/idem/nothing')), '404 not_found', 'nothing there');
    is(names($n->get('/idem/zones/')), '404 not_found', 'a zone without a name');
    is(names($n->get('/idem/zones/q')), '404 no_zone', 'no such zone');
    is(names($n->get('/idem/zones/q/records')), '404 no_zone', '... nor its records');
    is(names($n->get('/idem/zones/z/else')), '404 no_zone', '... nor anything else of it');
    is($n->get('/idem/zones/a/b')->{status}, 200, 'a slash in a name');
    is($n->get('/idem/zones/a%2fb/records')->{status}, 200, '... of records');
    like($n->get('/idem-eu')->header('Location'), qr{/idem-eu/$}, '... nor a location that is one URI only');

    for (qw(/idem/ /idem/metrics /idem/zones /idem/zones/z /idem/zones/z/records)) {
        my $r = $n->post($_, body => 'x');

        is(names($r), '405 method', "POST $_");
        is($r->header('Allow'), /records/ ? 'GET, HEAD, PUT, DELETE' : m{zones/z$} ? 'GET, HEAD, PUT' : 'GET, HEAD', '... Allow');
        is($r->header('Content-Type'), 'application/problem+json', '... a problem document');
        is($r->header('Cache-Control'), 'no-store', '... that nobody keeps');
    }

    ok(!$n->post('/idem/zones/z', key => 'k')->replayed, 'it is not protected itself') for 1, 2;
    is($n->get($records)->{body}, '', '... and binds nothing');
}


# --- records, in pages ------------------------------------------------------

{
    my ($rows, $pages) = walk(10);

    is("@$rows $pages", ' 1', 'no records: one page');
}

my %bound;

for (1 .. 200) {
    my $key = "page-$_";

    my $r = $n->post("/p$_", key => $key, body => $_);
    $bound{$key} = $r->{status};
}

{
    my ($rows, $pages) = walk(1000);

    is(scalar @$rows, 200, 'all of them');
    is($pages, 1, '... on a page');

    for my $limit (1, 7, 64, 65, 100, 200, 201, 99999) {
        my ($r, $p) = walk($limit);
        my %seen;

        $seen{$_->{token}}++ for @$r;
        is(scalar(grep { $_ != 1 } values %seen), 0, "limit=$limit: none twice");
        is(scalar keys %seen, 200, '... and all');
        cmp_ok($p, '>=', 200 / $limit, '... in pages');
    }

    my $row = $rows->[0];

    is(join(' ', sort keys %$row), 'expires fence fingerprint outcome owner recorded replays size status token',
       'what is told of each');
    is(length $row->{$_}, 64, "its $_") for qw(token fingerprint);
    is($row->{outcome}, 'done', 'its outcome');
    is($row->{status}, 200, 'its status');
    cmp_ok(abs($row->{recorded} - time), '<', 60, 'when it was recorded');
    cmp_ok(abs($row->{expires} - $row->{recorded} - 86400), '<', 1, 'when it ends');
    is($row->{replays}, 0, 'its replays');
    is($row->{owner}, undef, 'nobody owns it any more');

    # the clocks' milliseconds begin at other moments
    my %times;

    for (1 .. 20) {
        my ($same) = grep { $_->{token} eq $row->{token} } @{ (walk(200))[0] };

        $times{"$same->{recorded} $same->{expires}"}++;
        select undef, undef, undef, 0.0037;
    }

    is(join(', ', keys %times), "$row->{recorded} $row->{expires}",
       'its times are the same whenever it is looked at');
}

# others come and go meanwhile, on every page

{
    my $i = 0;

    my ($rows) = walk(10, sub {
        $n->post('/x', key => 'new-' . ++$i . "-$_") for 1 .. 5;
        $n->request('DELETE', "$records?key=new-" . ($i - 1) . "-$_") for 1 .. 5;
    });

    my %seen;
    $seen{$_->{token}}++ for @$rows;

    is(scalar(grep { $_ != 1 } values %seen), 0, 'while others come and go: none twice');

    my ($before) = walk(1000);
    my %now = map { $_->{token} => 1 } @$before;
    my @kept = map { row("page-$_")->{token} } 1 .. 200;

    is(scalar(grep { !$seen{$_} } @kept), 0, '... and all that were there all the time');
}

for ('limit=0', 'limit=x', 'limit=-1', 'cursor=', 'cursor=1', 'cursor=0-' . '0' x 64, 'cursor=1-' . 'g' x 64,
     'cursor=1-' . '0' x 63, 'cursor=x-' . '0' x 64)
{
    is(names($n->get("$records?$_")), '400 bad_argument', "$_ is malformed");
}

is($n->get("$records?cursor=" . '9' x 18 . '-' . 'f' x 64)->{body}, '', 'a cursor behind all');

{
    my $r = $n->request('HEAD', "$records?limit=3");

    is("$r->{status} $r->{body}", '200 ', 'HEAD');
    like($r->header('Link'), qr/rel="next"/, '... tells where the next page is');
}


# --- one, by its key --------------------------------------------------------

{
    $n->post('/x', key => 'one', body => 'b') for 1 .. 3;

    my $row = row('one');

    is($row->{replays}, 2, 'a record, and its replays');
    is(decode_json($n->get($records, key => 'one')->{body})->{token}, $row->{token}, 'by the header');
    is(decode_json($n->get($records, key => '"one"')->{body})->{token}, $row->{token}, '... in quotes');
    is(decode_json($n->get("$records?key=%6fne")->{body})->{token}, $row->{token}, 'escaped');
    is(decode_json($n->get("$records?scope=localhos%74&key=one")->{body})->{token}, $row->{token}, 'the scope');
    is(names($n->get("$records?key=one&scope=eu")), '404 no_record', 'another scope');
    is(names($n->get("$records?key=two")), '404 no_record', 'another key');
    is(names($n->get("$records?key=")), '400 malformed', 'an empty key');
    is(names($n->get($records, key => '"one')), '400 malformed', 'a bad one');
    is(names($n->get($records, headers => ['Idempotency-Key: one', 'Idempotency-Key: two'])), '400 malformed',
       'two of them');
    is(names($n->get('/uuid/zones/z/records?key=one')), '400 malformed', 'no UUID, where they are');
    is(decode_json($n->get('/off/zones/z/records?key=one')->{body})->{token}, $row->{token},
       'from where nothing is protected');
    is($n->request('HEAD', "$records?key=one")->{status}, 200, 'HEAD');

    $n->post('/eu', key => 'one');
    is(row('one&scope=eu')->{replays}, 0, 'the same key in another scope');
    is(decode_json($n->get('/idem-eu/zones/z/records?key=one')->{body})->{token}, row('one&scope=eu')->{token},
       "the location's own scope");
    $n->post('/x', key => 'a+b/c=%');
    is(row('a+b/c=%25')->{status}, 200, 'a plus is one');
    $n->post('/small', key => 'small');
    is(row('small')->{outcome}, 'not_kept', 'not kept');
}


# --- forgotten --------------------------------------------------------------

{
    my $r = $n->request('DELETE', '/read/zones/z/records?key=one');

    is(names($r), '405 method', 'without write=on');
    is($r->header('Allow'), 'GET, HEAD', '... Allow');
    is(names($n->request('PUT', '/read/zones/z/records?key=one', body => 'done')), '405 method', '... PUT');
    is(row('one')->{replays}, 2, '... and nothing has changed');

    my $fence = row('one')->{fence};
    $r = $n->request('DELETE', $records, key => 'one');

    is($r->{status}, 204, 'DELETE');
    is($r->{body}, '', '... tells nothing');
    like($n->log, qr/forgotten by hand, token: [0-9a-f]{64}, zone: "z", fence: $fence,/, '... and the log under which fence');
    is(names($n->get("$records?key=one")), '404 no_record', '... and it is gone');
    is(names($n->request('DELETE', $records, key => 'one')), '404 no_record', '... once');
    ok(!$n->post('/x', key => 'one', body => 'b')->replayed, 'the next one is executed');
    is(names($n->request('DELETE', $records)), '400 missing', 'not all of them');

    # one that is pending: its owner has lost it

    my $owner = $n->start(POST => '/reject?id=p&gate=1', key => 'pending');
    held('p');

    my $row = row('pending');

    is($row->{outcome}, 'pending', 'a pending one');
    is($row->{expires}, undef, '... has no end yet');
    ok((grep { $_ == $row->{owner} } $n->workers), '... and an owner');
    is($n->request('DELETE', $records, key => 'pending')->{status}, 204, '... is forgotten');

    my $second = $n->start(POST => '/reject?id=p&gate=1', key => 'pending');
    held('p', 2);
    cmp_ok(row('pending')->{fence}, '>', $row->{fence}, 'the next owner has a higher fence');
    go('p');
    is($_->response->{status}, 200, 'both are answered') for $owner, $second;
    $n->wait_log(qr/the claim was taken over/);
    ok(1, 'and the first does not record');
}


# --- settled ----------------------------------------------------------------

sub doubt {
    my ($key) = @_;

    $n->post("/x?id=$key&close=1", key => $key);
    is(row($key)->{outcome}, 'in_doubt', "$key is in doubt");
}

{
    doubt('d1');
    my $row = row('d1');

    is(names($n->request('PUT', $records, key => 'd1', body => 'executed')), '400 bad_outcome', 'no outcome');
    is(names($n->request('PUT', $records, key => 'd1')), '400 bad_outcome', '... none at all');
    is(names($n->request('PUT', $records, key => 'd1', body => 'done' . ' ' x 100)), '400 bad_outcome', '... too long');
    is(names($n->request('PUT', "$records?status=99", key => 'd1', body => 'done')), '400 bad_argument', '... no status');
    is(names($n->request('PUT', $records, body => 'done')), '400 missing', 'no key');
    is(row('d1')->{outcome}, 'in_doubt', 'nothing has changed');

    is($n->request('PUT', "$records?status=201", key => 'd1', body => "done\n")->{status}, 204, 'PUT: done');
    is(row('d1')->{outcome}, 'not_kept', '... is what it is');
    is(row('d1')->{status}, 201, '... with this status');
    cmp_ok(row('d1')->{expires}, '>=', $row->{expires} - 1, '... for as long as before');
    is(names($n->post('/x?id=d1&close=1', key => 'd1')), '409 not_kept', 'a repeat hears of it');
    is(executions('d1'), 1, '... and does not execute');
    is(names($n->request('PUT', $records, key => 'd1', body => 'released')), '409 not_in_doubt', 'only once');

    doubt('d2');
    is($n->request('PUT', $records, key => 'd2', body => 'released', chunked => 1)->{status}, 204, 'PUT: released');

    # a Redis may hear of it behind another question that is on its way
    ok(until_true { names($n->get("$records?key=d2")) eq '404 no_record' }, '... is gone');
    is($n->post('/x?id=d2', key => 'd2')->{status}, 200, '... and executes');

    doubt('d3');
    is($n->request('PUT', "$records?key=d3&outcome=done")->{status}, 204, 'PUT: by an argument');
    is(names($n->request('PUT', "$records?key=d3&outcome=done")), '409 not_in_doubt', 'what is done already');
    is(names($n->request('PUT', "$records?key=none&outcome=done")), '404 no_record', 'what is not there');

    my $owner = $n->start(POST => '/x?id=d4&gate=1', key => 'd4');
    held('d4');
    is(names($n->request('PUT', "$records?key=d4&outcome=released")), '409 not_in_doubt', 'what is pending');
    go('d4');
    is($owner->response->{status}, 200, '... stays its owner\'s');

    $n->wait_log(qr/settled as done by hand, token: [0-9a-f]{64}, zone: "z", fence: [1-9]/);
    ok(1, 'the log says so');
}

is(names($n->request('GET', $records, key => 'one', body => 'a body')), '200 -', 'a body of no interest');

ok($n->stop, 'the log is clean');

# --- who may ask ------------------------------------------------------------------

# Without remote=on this machine alone. What nginx can't see, a proxy in front of it
# on the same machine, is told by what proxies add.

{
    my $api = nginx(http => <<'HTTP', server => 'location / { return 204; }');
    server {
        listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1;
        listen unix:$TEST_NGINX_ROOT/api.sock;
        server_name admin.example .wild.example *.star.example end.* ~^re _ "" 192.0.2.7;
        set_real_ip_from 127.0.0.1;
        real_ip_header CF-Connecting-IP;

        location /near/ { idempotency_api write=on; }
        location /far/ { idempotency_api remote=on write=on; }
        location /off/ { idempotency_api remote=off write=off; }
        location /in/ {
            idempotency_api write=on;
            if ($arg_key) { set $a 1; }
            limit_except GET { allow 127.0.0.1; deny all; }
        }
        location /out/ { idempotency_api; if ($arg_key) { set $a 1; } limit_except GET { allow all; } }
        location = /own/outcome { idempotency zone=z; idempotency_api; }
        location = /clients/outcome { idempotency zone=z; idempotency_api remote=on; }
    }
    server {
        listen 127.0.0.1:$TEST_NGINX_RAND_PORT_2 proxy_protocol;
        location /near/ { idempotency_api; }
    }
HTTP
    my $port = $api->port(1);

    my $at = sub {
        my ($host, $method, $uri, @headers) = @_;

        return names($api->request($method, $uri, host => $host, port => $port,
                                   headers => [@headers]));
    };
    my $get = sub { my ($uri, @headers) = @_; return $at->('localhost', 'GET', $uri, @headers) };

    is($get->('/near/metrics'), '200 -', 'this machine asks');
    is($get->('/off/metrics'), '200 -', '... whether remote=off is said or not');

    for my $from ('Forwarded: for=192.0.2.1', 'Via: 1.1 x', 'X-Real-IP: 127.0.0.1',
                  'X-Forwarded-For: 127.0.0.1', 'X-Forwarded-Proto: https', 'x-forwarded-host: a',
                  'X-Forwarded-Anything: at all', 'CF-Connecting-IP: 192.0.2.1')
    {
        for my $what (qw(/near/ /near/metrics /near/zones /near/zones/z /near/zones/z/records
                         /near/nothing /own/outcome))
        {
            my $r = $api->get($what, host => 'localhost', port => $port, headers => [$from]);

            is($r->{status}, 403, "$from: $what is refused");
            like($r->{body}, qr/idempotency_api remote=on;/, '... and says by which parameter');
        }

        is($get->('/far/metrics', $from), '200 -', '... but not with remote=on');
    }

    # realip: of the socket's own address, too

    is($get->('/near/metrics', 'CF-Connecting-IP: 127.0.0.9'), '200 -',
       'an address of this machine by realip');

    {
        my $page = $api->get('/near/', host => 'localhost', port => $port,
                             headers => ['Via: 1.1 x', 'Accept: text/html']);

        is($page->header('Content-Type'), 'text/plain', 'the page says so as text');
        like($page->{body}, qr/^Only this machine may ask\./, '... to people');
        is($page->header('Cache-Control'), 'no-store', '... and stays nowhere');
    }

    is(names($api->request('GET', '/own/outcome', key => 'k', host => 'localhost', port => $port,
                           headers => ['Authorization: Bearer a'])),
       '200 -', '/outcome for this machine');
    is(names($api->request('GET', '/clients/outcome', key => 'k', host => 'anything', port => $port,
                           headers => ['Authorization: Bearer a', 'X-Forwarded-For: 192.0.2.1'])),
       '200 -', '... and for clients, with remote=on');

    # the PROXY protocol

    for (['127.0.0.1', 200], ['192.0.2.1', 403]) {
        my ($from, $status) = @$_;
        my $c = $api->connect(port => $api->port(2));

        $c->send("PROXY TCP4 $from 127.0.0.1 1 2\r\n" . message(GET => '/near/metrics', host => 'localhost'));
        is($c->response->{status}, $status, "PROXY protocol: $from");
        $c->close;
    }

    # over a socket of the file system

    {
        my $c = IO::Socket::UNIX->new(Peer => $api->root . '/api.sock') or die "api.sock: $!";

        print $c message(GET => '/near/metrics', host => 'localhost', close => 1);
        like(join('', <$c>), qr{^HTTP/1\.1 200 }, 'a socket of the file system');
    }

    # the Host: this machine's, or the server's own and no other

    for my $host (qw(localhost LOCALHOST localhost:8080 127.0.0.1 127.8.9.10:80 [::1] [::1]:8080
                     admin.example Admin.Example admin.example:81 192.0.2.7))
    {
        is($at->($host, GET => '/near/metrics'), '200 -', "Host: $host");
        is($at->($host, DELETE => '/far/zones/z/records?key=none'), '404 no_record',
           '... may change something');
    }

    for my $host (qw(rebound.example a.wild.example wild.example b.star.example end.com re.example _
                     localhost.rebound.example 127.0.0.1.rebound.example 192.0.2.8 128.0.0.1 [::2]
                     admin.example.rebound.example xadmin.example))
    {
        is($at->($host, GET => '/near/metrics'), '403 host', "Host: $host is refused");
        is($at->($host, DELETE => '/near/zones/z/records?key=none'), '403 host', '... a change, too');
        is($at->($host, GET => '/far/metrics'), '200 -', '... but with remote=on it may read');
        is($at->($host, DELETE => '/far/zones/z/records?key=none'), '403 host', '... and not change');
        is($at->($host, PUT => '/far/zones/z/records?key=none&outcome=done'), '403 host', '... nor settle');
    }

    {
        my $c = $api->connect(port => $port);

        $c->send("GET /near/metrics HTTP/1.0\r\n\r\n");
        is($c->response->{status}, 403, 'no Host');
        $c->close;
    }

    # a page of another site

    for my $ok ([], ['Sec-Fetch-Site: same-origin'], ['Sec-Fetch-Site: none'],
                ['Sec-Fetch-Site: same-origin', 'Origin: https://front.example'],
                ['Origin: http://admin.example'], ['Origin: https://Admin.Example'])
    {
        for my $where ('/near', '/far') {
            is($at->('admin.example', DELETE => "$where/zones/z/records?key=none", @$ok),
               '404 no_record', "$where: a change, " . (join(', ', @$ok) || 'by a program'));
        }
    }

    for my $bad (['Sec-Fetch-Site: cross-site'], ['Sec-Fetch-Site: same-site'],
                 ['Sec-Fetch-Site: '], ['Sec-Fetch-Site: same-origin', 'Sec-Fetch-Site: cross-site'],
                 ['Sec-Fetch-Site: cross-site', 'Origin: http://admin.example'],
                 ['Origin: null'], ['Origin: http://rebound.example'], ['Origin: '],
                 ['Origin: http://admin.example:81'], ['Origin: http://admin.example.rebound.example'],
                 ['Origin: http://xadmin.example'], ['Origin: admin.example'],
                 ['Origin: http://admin.example', 'Origin: http://rebound.example'])
    {
        for my $where ('/near', '/far') {
            is($at->('admin.example', DELETE => "$where/zones/z/records?key=none", @$bad),
               '403 origin', "$where: no change, " . join(', ', @$bad));
            is($at->('admin.example', PUT => "$where/zones/z/records?key=none&outcome=done", @$bad),
               '403 origin', '... nor is anything settled');
            is($at->('admin.example', GET => "$where/zones", @$bad), '200 -', '... what is read is read');
        }
    }

    # "if" and "limit_except" are locations of their own, for nginx
    is($at->('localhost', GET => '/in/zones/z/records?key=none'), '404 no_record', 'in an "if"');
    is($at->('localhost', DELETE => '/in/zones/z/records?key=none'), '404 no_record', 'in a "limit_except"');
    is($at->('localhost', GET => '/in/zones/z?key=none', 'Via: 1.1 x'), '403 remote', '... not remote=on');
    is($at->('localhost', DELETE => '/out/zones/z/records?key=none'), '405 method', '... nor write=on');

    is($at->('localhost:8080', DELETE => '/near/zones/z/records?key=none', 'Origin: http://localhost:8080'),
       '404 no_record', 'an origin with its port');

    $api->stop;
}

for (['remote=yes', 'remote=yes'], ['remote=on remote=on', 'remote=on'], ['write=on write=off', 'write=off'],
     ['local=on', 'local=on'])
{
    my ($parameters, $named) = @$_;
    my ($ok, $said) = config_test(server => "location /a { idempotency_api $parameters; }");

    ok(!$ok && $said =~ /\[emerg\] (?:\d+#\d+: )?invalid parameter "\Q$named\E" in \S+:\d+/,
       "idempotency_api $parameters") or diag($said);
}

done_testing();
