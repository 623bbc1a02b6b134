#!/usr/bin/perl

# docs/directives.md, idempotency_api: what is counted and how it is told, in
# /metrics and /zones: each request once, whatever comes of it.

use lib 't/lib';
use Idempotency;

use JSON::PP qw(decode_json);

my @results = qw(new replayed waited conflict in_progress in_doubt not_kept
                 similar expired missing malformed limited unavailable bypass nested);

my $protected = <<'EOC';
    location /idem/ { idempotency_api; }
    location = /one/metrics { idempotency_api write=off; }
    location /some/zones { idempotency_api; }

    idempotency zone=z;
    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /reject { idempotency_in_progress reject; idempotency_missing_key reject; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /small { idempotency_max_response 4; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /similar { idempotency_similar reject; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /warn { idempotency_similar warn; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /aged { idempotency_key_format uuid7; idempotency_key_max_age 1m; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /quota { idempotency_quota 1; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /bypass { idempotency_bypass 1; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /sent-on { idempotency_bypass 1; error_page 418 = @back; return 418; }
    location @back { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /dead { proxy_read_timeout 100ms; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /dry {
        idempotency_dry_run on;
        proxy_pass http://$TEST_NGINX_BACKEND;
        location /dry/reject { idempotency_missing_key reject; proxy_pass http://$TEST_NGINX_BACKEND; }
    }
    location /off { idempotency off; proxy_pass http://$TEST_NGINX_BACKEND; }
EOC

my $n = nginx(server => $protected, workers => 2, allow => qr/exited on signal 9/,
              http => "idempotency_zone zone=odd\"name\\:256k;\n");

sub zones {
    my ($of) = @_;

    my $r = ($of // $n)->get('/idem/zones');

    die "no JSON: $r->{head}" if $r->header('Content-Type') ne 'application/json';

    return { map { $_->{name} => $_ } @{decode_json($r->{body})->{zones}} };
}

sub metrics {
    my ($of) = @_;

    my %m;

    for (split /\n/, ($of // $n)->get('/idem/metrics')->{body}) {
        /^(nginx_idempotency_\w+)\{zone="z"(?:,\w+="([^"]*)")?\} (\S+)$/ or next;
        defined $2 ? ($m{$1}{$2} = $3) : ($m{$1} = $3);
    }

    return \%m;
}

# What a request adds to the counters, by name.

my %last = map { $_ => 0 } @results, map "dry $_", @results;

sub adds {
    my ($code) = @_;

    $code->();

    my $z = zones()->{z};
    my $m = metrics();
    my (%now, @new);

    for (@results) {
        $now{$_} = $z->{requests}{$_};
        $now{"dry $_"} = $z->{dry_run}{$_};

        die "$_: /metrics has other figures than /zones"
            if $m->{nginx_idempotency_requests_total}{$_} != $now{$_}
               || $m->{nginx_idempotency_dry_run_requests_total}{$_} != $now{"dry $_"};
    }

    for (sort keys %now) {
        push @new, "$_ " . ($now{$_} - $last{$_}) if $now{$_} != $last{$_};
    }

    %last = %now;

    return join ', ', @new;
}


# --- each result ------------------------------------------------------------

is(adds(sub { }), '', 'nothing yet');
is(adds(sub { $n->post('/a', key => 'k1', body => 'x') }), 'new 1', 'new');
is(adds(sub { $n->post('/a', key => 'k1', body => 'x') for 1 .. 3 }), 'replayed 3', 'replayed');
is(adds(sub { $n->post('/a', key => 'k1', body => 'y') }), 'conflict 1', 'conflict');
is(adds(sub { $n->post('/small', key => 'k2') for 1, 2 }), 'new 1, not_kept 1', 'not kept');
is(adds(sub { $n->post('/reject') }), 'missing 1', 'missing');
is(adds(sub { $n->post('/a', key => '"') }), 'malformed 1', 'malformed');
is(adds(sub { $n->post('/bypass', key => 'k1') }), 'bypass 1', 'bypass');
is(adds(sub { $n->post('/sent-on', key => 'k3') }), 'new 1', 'bypassed first, then protected: once');
is(adds(sub { $n->post('/a'); $n->get('/a'); $n->post('/off', key => 'k1') }), '', 'what is not protected');
is(adds(sub { $n->post('/aged', key => Idempotency::uuid7(120)) }), 'expired 1', 'expired');
is(adds(sub { $n->post('/quota', key => "q$_") for 1, 2 }), 'limited 1, new 1', 'limited');
is(adds(sub { $n->post('/similar', key => "s$_", body => 's') for 1, 2 }), 'new 1, similar 1', 'similar, refused');
is(adds(sub { $n->post('/warn', key => "w$_", body => 'w') for 1, 2 }), 'new 1, similar 1', 'similar, passed');
is(adds(sub { $n->post('/dry', key => 'd1') for 1, 2 }), 'dry new 1, dry replayed 1', 'a dry run');
is(adds(sub { $n->post('/dry/reject') }), 'dry missing 1', 'a dry run, of a refusal');

is(adds(sub {
    my $first = $n->start(POST => '/a?id=g1&gate=1', key => 'k4');
    held('g1');
    $n->post('/reject?id=g1&gate=1', key => 'k4');
    my $second = $n->start(POST => '/a?id=g1&gate=1', key => 'k4');
    until_true { zones()->{z}{races} == 2 } or die 'it does not wait';
    go('g1');
    $_->response for $first, $second;
}), 'conflict 1, new 1, waited 1', 'a pending one is met, and waited for');

is(adds(sub {
    my $first = $n->start(POST => '/reject?id=g2&gate=1', key => 'k5');
    held('g2');
    $n->post('/reject?id=g2&gate=1', key => 'k5') for 1, 2;
    go('g2');
    $first->response;
}), 'in_progress 2, new 1', 'in progress');

is(adds(sub { $n->post('/dead?delay=100000&close=1', key => 'k6') for 1, 2 }),
   'new 1, replayed 1', 'in doubt: replayed');

is(adds(sub {
    my $c = $n->start(POST => '/a?id=g3&gate=1', key => 'k7');
    held('g3');
    $c->close;
    go('g3');
    until_true { $n->get('/idem/zones/z/records?key=k7')->{body} =~ /"outcome":"done"/ };
    $n->post('/a?id=g3&gate=1', key => 'k7');
}), 'new 1, replayed 1', 'a client that left');


# --- the rest ---------------------------------------------------------------

my $z = zones()->{z};

is($z->{races}, 4, 'races');
is($z->{conflicts}{body}, 1, 'conflicts: of the body');
is($z->{conflicts}{action}, 1, 'conflicts: of the action');
is($z->{in_doubt}, 1, 'in doubt');
is($z->{wait}{count}, 1, 'one has waited');
is($z->{wait}{buckets}[-1]{count}, $z->{wait}{count}, 'for less than ten seconds');
is(join(' ', map { $_->{count} } @{$z->{wait}{buckets}}),
   join(' ', sort { $a <=> $b } map { $_->{count} } @{$z->{wait}{buckets}}),
   'the buckets contain each other');
is($z->{records}{pending}, 0, 'nothing is pending');
is($z->{records}{in_doubt}, 1, 'records: in doubt') if !$z->{store};
cmp_ok($z->{oldest}, '>', 0, 'the oldest has an age');
is($z->{bytes}{used} + $z->{bytes}{free}, 16 * 1024 * 1024, 'bytes');
is($z->{store}, undef, 'nothing stands behind') if !$ENV{TEST_IDEMPOTENCY_STORE};
ok(exists $z->{growth} && exists $z->{full_in}, 'a trend');

{
    my $before = zones()->{z}{replayed_bytes};
    my $r = $n->post('/a', key => 'k1', body => 'x');

    is(zones()->{z}{replayed_bytes} - $before, length $r->{body}, 'replayed bytes');
}

ok(zones()->{'odd"name\\'}, 'a name is escaped, in JSON');
like($n->get('/idem/metrics')->{body}, qr/\{zone="odd\\"name\\\\",state="free"\}/, '... in metrics');

my $r = $n->get('/one/metrics');

is($r->header('Content-Type'), 'text/plain; version=0.0.4', 'the type that Prometheus asks for');
is($r->header('Cache-Control'), 'no-store', 'nobody keeps it');
is($n->get('/some/zones')->{status}, 200, 'a location for zones');
is($n->get('/some/zones/z')->{status}, 200, '... and below');
is($n->get('/some/zones/q')->{status}, 404, '... of which this is none');

my $version = decode_json($n->get('/idem/zones')->{body})->{version};

is(join("\n", $r->{body} =~ /^(nginx_idempotency_build_info.*)$/mg),
   qq(nginx_idempotency_build_info{version="$version"} 1), 'the version, as /zones has it');

# by rule: each metric once, with help and type before its samples
my %seen;
my $current = '';

for (split /\n/, $r->{body}) {
    if (/^# HELP (\S+) \S/) {
        fail("$1 comes twice") if $seen{$1}++;
        $current = $1;

    } elsif (/^# TYPE (\S+) (counter|gauge|histogram)$/) {
        fail("$1: type without help") if $1 ne $current;

    } elsif (!/^\Q$current\E(?:_bucket|_sum|_count)?\{(?:zone|version)="(?:[^"\\]|\\.)*"(?:,\w+="[^"]*")?\} -?[\d.]+$/) {
        fail("not a sample of $current: $_");
    }
}

cmp_ok(scalar keys %seen, '>', 12, 'all samples are in order');

SKIP: {
    skip 'no promtool', 1 if system('command -v promtool >/dev/null');

    open my $p, '|-', 'promtool check metrics >/dev/null' or die "promtool: $!";
    print $p $r->{body};
    ok(close $p, 'promtool finds nothing');
}


# --- over reloads, and the death of workers ---------------------------------

$n->reload;
is(adds(sub { $n->post('/a', key => 'k1', body => 'x') }), 'replayed 2', 'a reload takes nothing away');

kill KILL => $n->workers;
until_true { $n->get('/idem/zones')->{status} == 200 };
is(adds(sub { $n->post('/a', key => 'k1', body => 'x') }), 'replayed 1', 'nor does the death of workers');

$n->stop;


# --- many at once: each once ------------------------------------------------

$n = nginx(workers => 2, server => <<'EOC', http => "log_format s '\$idempotency_status';\n");
    access_log logs/status.log s;
    location /idem/ { access_log off; idempotency_api; }
    location / { idempotency zone=z; idempotency_bypass $arg_bypass; proxy_pass http://$TEST_NGINX_BACKEND; }
EOC

my @children = map {
    my $seed = $_;

    child(sub {
        srand $seed;

        for (1 .. 150) {
            my $id = int rand 60;
            my $c = $n->start(POST => "/x?id=m$id&delay=" . $id % 5 . (rand() < 0.1 ? '&bypass=1' : ''),
                              key => "m$id", body => rand() < 0.1 ? 'a' : 'b');

            rand() < 0.1 ? $c->close : $c->response;
        }
    });
} 1 .. 6;

for (1 .. 3) {
    $n->reload;
}

waitpid $_, 0 for @children;

my $logged = sub {
    my %logged;
    $logged{lc $_}++ for grep { $_ ne '-' } split /\n/, slurp($n->root . '/logs/status.log');
    return \%logged;
};

my $sum = sub { my $t = 0; $t += $_ for values %{$_[0]}; return $t };

# those whose clients left may still be under way
until_true { zones()->{z}{records}{pending} == 0
             && $sum->(zones()->{z}{requests}) == $sum->($logged->()) };

my $counted = zones()->{z}{requests};

is(join(', ', map { "$_ $counted->{$_}" } grep { $counted->{$_} } @results),
   join(', ', map { "$_ " . $logged->()->{$_} } grep { $logged->()->{$_} } @results),
   'each request is counted once, as its $idempotency_status says');

ok($n->stop, 'the log is clean');

done_testing();
