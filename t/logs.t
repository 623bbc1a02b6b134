#!/usr/bin/perl

# docs/operation.md, "The log" and "The trail": what the log tells of each request, at
# which level, and what it keeps to itself; how much of it there may be.

use FindBin;
use lib "$FindBin::Bin/lib", "$FindBin::Bin/stress";
use Idempotency;
use Trail;

Test::More::plan(skip_all => 'an outcome is logged when it is answered, which may be never')
    if answers_late();

my %levels = (default => [qw(notice info)], info => [qw(info info)],
              notice => [qw(notice info)], warn => [qw(warn notice)],
              error => [qw(error warn)]);

my $n = nginx(allow => qr/exited on signal/,
              server => <<'EOC' . join '', map { <<"EOL" } grep { $_ ne 'default' } sort keys %levels);
    idempotency zone=z;
    idempotency_in_progress reject;
    keepalive_requests 10000000;
    add_header X-Token $idempotency_token always;
    add_header X-Fence $idempotency_fence always;

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /short { idempotency_window 1s; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /small { idempotency_max_response 4; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /dead { proxy_pass http://$TEST_NGINX_DEAD; }
    location /retry { idempotency_in_doubt retry; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /dry { idempotency_dry_run on; proxy_pass http://$TEST_NGINX_BACKEND; }
EOC
    location /$_ { idempotency_log_level $_; proxy_pass http://\$TEST_NGINX_BACKEND; }
EOL

like($n->log, qr/\[notice\] .*idempotency: version \d\S+$/m, 'which version has been loaded');


# --- a request's lines --------------------------------------------------------

for my $level (sort keys %levels) {
    my $at = $level eq 'default' ? '' : $level;
    my ($of_requests, $of_trail) = @{ $levels{$level} };
    my $seen = mark();
    my @o = (key => "the-key-$level", body => 'the-body');
    my $r = $n->post("/$at?id=l-$level", @o);
    my ($token, $fence) = bound($r);

    $n->post("/$at?id=l-$level", @o);
    $n->post("/$at?id=l-$level", @o, body => 'another-body');

    my $tail = qr/token: $token, zone: "z"/;
    my $found = qr/outcome: done, age: \d+\.\d{3}, fence: $fence\b/;

    is_lines($seen, 4, "$level: as many lines",
        qr/\[$of_trail\] .*idempotency claim, $tail, fence: $fence\b/,
        qr/\[$of_trail\] .*idempotency outcome done, status 200, $tail, fence: $fence\b/,
        qr/\[$of_requests\] .*idempotency: replayed a response of status 200, $tail, $found/,
        qr/\[$of_requests\] .*idempotency: refused with status 409, conflict, reason: body, $tail, $found/);
}

unlike($n->log, qr/the-key|the-body|another-body/, 'no line has the key, or content');


# --- what became of it --------------------------------------------------------

{
    my $seen = mark();
    my ($token, $fence) = bound($n->post('/?id=released&status=429', key => 'o1'));
    my ($again, $later) = bound($n->post('/?id=released&status=429', key => 'o1'));

    is($again, $token, 'a status that releases: the same token');
    cmp_ok($later, '>', $fence, '... and the fence rises');
    is_lines($seen, 4, '... each claim has its outcome',
        map { (qr/idempotency claim, token: $token, zone: "z", fence: $_\b/,
               qr/idempotency outcome released, status 429, token: $token, zone: "z", fence: $_\b/) }
            $fence, $later);
}

{
    my $seen = mark();
    my ($token, $fence) = bound($n->post('/dead', key => 'o2'));

    is_lines($seen, 2, 'nothing was sent: released',
        qr/claim, token: $token/, qr/outcome released, status 502, token: $token/);
}

{
    my $seen = mark();
    my ($token, $fence) = bound($n->post('/small?id=small', key => 'o3'));

    $n->post('/small?id=small', key => 'o3');
    is_lines($seen, 3, 'not kept',
        qr/claim, token: $token/, qr/outcome not kept, status 200, token: $token/,
        qr/refused with status 409, not_kept, token: $token, zone: "z", outcome: not kept, age: /);
}

{
    my $seen = mark();
    my ($token) = bound($n->post('/?id=cut&close=1', key => 'o4'));

    $n->post('/?id=cut&close=1', key => 'o4');
    is_lines($seen, 3, 'in doubt, with what the client got',
        qr/claim, token: $token/, qr/outcome in doubt, status 502, token: $token/,
        qr/replayed a response of status 502, token: $token, zone: "z", outcome: in doubt, age: /);
}

{
    my $seen = mark();
    my $first = $n->start('POST', '/?id=pending&gate=1', key => 'o5');

    held('pending');
    $n->post('/?id=pending&gate=1', key => 'o5');
    go('pending');

    my ($token, $fence) = bound($first->response);

    is_lines($seen, 3, 'pending',
        qr/claim, token: $token/,
        qr/refused with status 409, in_progress, token: $token, zone: "z", outcome: pending, fence: $fence\b/,
        qr/outcome done, status 200, token: $token/);
}

{
    my $seen = mark();
    my ($token, $fence) = bound($n->post('/short?id=ends', key => 'o6'));
    my $later = until_true {
        my ($t, $f) = bound($n->post('/short?id=ends', key => 'o6'));
        $f > $fence ? $f : 0;
    };

    # how often it was replayed before depends on the machine
    is_deeply([ map { /(claim|outcome \w+),.* token: $token, .*fence: (\d+)/ ? "$1 $2" : () }
                grep { /idempotency (?:claim|outcome)/ } lines($seen, 4) ],
              [ "claim $fence", "outcome done $fence", "claim $later", "outcome done $later" ],
              'a window ends: the log still knows of the first one');
}

{
    my $seen = mark();

    $n->post('/dry?id=dry', key => 'o7', body => 'a');
    $n->post('/dry?id=dry', key => 'o7', body => 'b');
    is_lines($seen, 3, 'a dry run',
        qr/claim, dry run, token: /, qr/outcome done/, qr/refused with status 409, conflict, reason: body, dry run, /);
}


# --- an owner dies --------------------------------------------------------------

{
    my $seen = mark();
    my ($worker) = $n->workers;
    my $first = $n->start('POST', '/retry?id=dies&gate=1', key => 'd1');

    held('dies');
    kill KILL => $worker;

    my $line = $n->wait_log(qr/the owner of a claim has gone/);
    my ($token, $fence) = $n->log =~ /\[notice\] .*the owner of a claim has gone, it is in doubt, token: ([0-9a-f]{64}), zone: "z", fence: (\d+)/;

    ok($token, 'the owner dies: the log says whose claim is in doubt');

    my $second = $n->start('POST', '/retry?id=dies&gate=1', key => 'd1');

    held('dies', 2);
    go('dies');

    my ($again, $later) = bound($second->response);

    is($again, $token, '... the next one');
    is_lines($seen, undef, '... takes it over, and that is said',
        qr/claim, token: $token, zone: "z", fence: $fence\b/,
        qr/\[notice\] .*has gone, it is in doubt, token: $token/,
        qr/\[notice\] .*idempotency: took over a token in doubt, token: $token, zone: "z", fence: $later\b/,
        qr/claim, token: $token, zone: "z", fence: $later\b/,
        qr/outcome done, status 200, token: $token, zone: "z", fence: $later\b/);
    $first->close;
}


# --- a flood --------------------------------------------------------------------

{
    my $token = bound($n->post('/?id=flood', key => 'f1'));
    my $seen = mark();
    my $sent = 0;
    my $c = $n->connect;
    my $more = message('POST', '/?id=flood', key => 'f1');

    # until they come faster than they are written
    until_true {
        $c->send($more x 50);
        $c->response('POST') for 1 .. 50;
        $sent += 50;

        grep { /more lines were suppressed/ } lines($seen);
    };

    $c->close;
    $n->signal('QUIT');
    $n->stop;

    my @lines = lines($seen);
    my $written = grep { /idempotency: replayed / } @lines;
    my @rest = map { /\[notice\] .*idempotency: (\d+) more lines were suppressed, replay$/ ? $1 : () } @lines;

    cmp_ok($written, '>=', 1000, 'a flood: some lines are written');
    cmp_ok($written, '<', $sent, '... but not all');
    is($written + eval(join '+', @rest), $sent, '... and those that are not are counted');
}


# --- the trail, read ------------------------------------------------------------
#
# That of the stress test has nothing to complain about; these have.

{
    my $line = sub {
        my ($time, $text, $fence) = @_;
        sprintf qq(2026/11/19 02:00:%02d [info] 7#7: *1 %s, token: %s, zone: "z", fence: %d, client: x\n),
                $time, $text, 'ab' x 32, $fence;
    };
    my ($claim, $done, $free) = ('idempotency claim', 'idempotency outcome done, status 200',
                                 'idempotency outcome released, status 429');
    my $dead = "2026/11/19 02:00:59 [alert] 1#1: worker process 7 exited on signal 9\n";

    for (['done, then another window'  => 0, [0, $claim, 1], [0, $done, 1], [40, $claim, 2]],
         ['done, and claimed again'    => 1, [0, $claim, 1], [0, $done, 1], [10, $claim, 2]],
         ['released, the lines crossed' => 0, [0, $claim, 1], [1, $claim, 2], [1, $free, 1]],
         ['pending, and claimed again' => 1, [0, $claim, 1], [1, $claim, 2]],
         ['two outcomes'               => 1, [0, $claim, 1], [1, $done, 1], [1, $free, 1]],
         ['an outcome of nothing'      => 1, [0, $done, 1]],
         ['a fence twice'              => 1, [0, $claim, 1], [1, $claim, 1]],
         ['taken over'                 => 0, [0, $claim, 1], [9, 'idempotency: took over a token in doubt', 2],
                                             [9, $claim, 2]])
    {
        my ($name, $violations, @lines) = @$_;
        my $text = join '', map { $line->(@$_) } @lines;
        my $audit = Trail::audit($text, window => 30);

        is(scalar @{ $audit->{violations} }, $violations, "the trail: $name");
    }

    my $audit = Trail::audit(join('', $line->(0, $claim, 1), $line->(1, $claim, 2), $dead), window => 30);
    is("@{ $audit->{violations} } $audit->{unknown}", ' 1', 'the trail: nobody knows what the dead had done');
}


# --- for those who look for a fault ----------------------------------------------

SKIP: {
    skip 'nginx has no debug log', 2 if `@{[ $ENV{TEST_NGINX_BINARY} || 'nginx' ]} -V 2>&1` !~ /--with-debug/;

    my $n = nginx(log_level => 'debug', server => <<'EOC');
        idempotency zone=z;
        location / { proxy_pass http://$TEST_NGINX_BACKEND; }
EOC

    $n->post('/?id=debug', key => 'debugged');
    $n->post('/?id=debug', key => 'debugged');

    my @rooms = map { /\[debug\] .*?: (?:\*\d+ )?idempotency (\w+)/ ? $1 : () } split /\n/, $n->log;
    my %rooms = map { $_ => 1 } @rooms;

    is(join(' ', grep { !$rooms{$_} } qw(answer bind gate key outcome replay)), '',
       'debug: through all rooms');
    is(join(' ', grep { !/\[debug\]/ && /idempotency.*debugged/ } split /\n/, $n->log), '', '... which alone have the key');
}

done_testing();


# --- helpers --------------------------------------------------------------------

# what is there already
sub mark { return length $n->log }

# ours since then, when there are so many
sub lines {
    my ($seen, $at_least) = @_;

    # but what stands behind the zones says of itself
    my $read = sub { grep { /\bidempotency[: ]/ && !/ of zone "z"/ } split /\n/, substr($n->log, $seen) };

    until_true { my @l = $read->(); @l >= $at_least } if $at_least;

    return $read->();
}

# is_lines(MARK, HOW MANY, NAME, PATTERNS): a line for each. An outcome may be told when
# the answer to the next request has been sent: the store says when it is recorded
sub is_lines {
    my ($seen, $many, $name, @patterns) = @_;
    my $missing = sub {
        my @lines = lines($seen);
        grep { my $p = $_; !grep { $_ =~ $p } @lines } @patterns;
    };

    until_true { !$missing->() };
    is(join("\n", $missing->()), '', $name) or Test::More::diag(join "\n", lines($seen));
    is(scalar(my @l = lines($seen)), $many, "$name: no more than these") if defined $many;
}

sub bound { return map { $_[0]->header($_) } qw(X-Token X-Fence) }
