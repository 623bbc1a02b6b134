#!/usr/bin/perl

# examples/observability/: Prometheus takes what it is given, each alert comes when it
# should and not before, and what Grafana asks for is there. examples.t runs
# the nginx beside it, metrics.t looks at the figures themselves.

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;
use Commands qw(run spew);
use HTTP::Tiny;
use JSON::PP qw(decode_json);
use POSIX ();
use Time::HiRes qw(sleep);

my $dir = "$FindBin::Bin/../examples/observability";
my $dashboard = decode_json(slurp("$dir/dashboard.json"));
my @panels = @{ $dashboard->{panels} };
my @asked = map { my $p = $_; map { [$p->{title}, $_->{expr}] } @{ $p->{targets} } } @panels;


# --- without Prometheus -------------------------------------------------------

my %metric = slurp("$FindBin::Bin/../src/observe/ngx_http_idempotency_metrics.c")
             =~ /^    \{ "\w+", "(\w+)", "(counter|gauge|histogram)",$/mg;

cmp_ok(scalar keys %metric, '>', 15, 'there are metrics');

my %series = map {
    my $name = "nginx_idempotency_$_";
    $metric{$_} eq 'histogram' ? map { $name . $_ => 1 } qw(_bucket _sum _count) : ($name => 1);
} keys %metric;

my %used;

for (@asked, ['rules', slurp("$dir/rules.yml") =~ s/^ *#.*//mgr],
     ['the test of rules', slurp("$dir/rules.test.yml") =~ s/^ *#.*//mgr])
{
    my ($where, $text) = @$_;
    my @unknown = grep { !$series{$_} && !/^nginx_idempotency_conflicts_total$/ }
                  $text =~ /\b(nginx_idempotency_\w+)/g;

    $used{$_} = 1 for $text =~ /\b(nginx_idempotency_\w+)/g;
    is("@unknown", '', "$where: asks for what there is");
}

my @unused = grep { my $m = $_; !grep { /^nginx_idempotency_$m(?:_bucket)?$/ } keys %used } sort keys %metric;
is("@unused", '', 'and nothing is left out');

my $page = slurp("$FindBin::Bin/../docs/observability.md");
my $rules = slurp("$dir/rules.yml");

is(join(' ', sort $page =~ /^\| `(\w+)` \| /mg), join(' ', sort keys %metric),
   'docs/observability.md has a row for each metric');
is(join(' ', sort map { split /, / } $page =~ /^\| (Idempotency\w+(?:, \w+)*) \|/mg),
   join(' ', sort $rules =~ /- alert: (\w+)/g), 'and for each alert');

my %place;
for my $p (@panels) {
    my $at = $p->{gridPos};

    for my $x ($at->{x} .. $at->{x} + $at->{w} - 1) {
        for my $y ($at->{y} .. $at->{y} + $at->{h} - 1) {
            push @{ $place{"$x $y"} }, $p->{title};
        }
    }
}

is(join(', ', map { "@$_" } grep { @$_ > 1 } values %place), '', 'no panel covers another');
is(scalar(grep { /^(\d+) / && $1 > 23 } keys %place), 0, 'nor sticks out');


# --- with its tool ------------------------------------------------------------

$ENV{PATH} .= ':/usr/sbin';

for my $tool (qw(promtool prometheus)) {
    next if grep { -x "$_/$tool" } split /:/, $ENV{PATH};
    diag("no $tool here: what it says of the rules is not known");
    done_testing();
    exit;
}

for (['check', 'config', 'prometheus.yml'], ['check', 'rules', 'rules.yml'],
     ['test', 'rules', 'rules.test.yml'])
{
    my @command = @$_;
    my ($rc, $said) = run('sh', '-c', 'cd "$0" && exec promtool "$@"', $dir, @command);

    is($rc, 0, "promtool @command") or diag($said);
}

my $tested = slurp("$dir/rules.test.yml");
is(join(' ', grep { $tested !~ /alertname="$_"/ } $rules =~ /- alert: (\w+)/g), '',
   'each alert has its test');


# --- with Prometheus itself ---------------------------------------------------

my $n = nginx(server => <<'EOC');
    idempotency zone=z;
    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /dry { idempotency_dry_run on; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /idempotency/ { idempotency_api; }
EOC

$n->post('/', key => 'k', body => $_) for qw(a a b);
$n->post('/dry', key => 'd', body => $_) for qw(a b);

{
    my ($rc, $said) = run('sh', '-c', 'curl -sSf "$0" | promtool check metrics',
                          'http://127.0.0.1:' . $n->port . '/idempotency/metrics');
    is("$rc $said", '0 ', 'promtool check metrics');
}

my $port = free_port();
my $home = $n->root . '/prometheus';

mkdir $home;
(my $conf = slurp("$dir/prometheus.yml")) =~ s/127\.0\.0\.1:\d+/'127.0.0.1:' . $n->port/e;
$conf =~ s/scrape_interval: \K15s/200ms/ or die 'no interval';
spew("$home/prometheus.yml", $conf);
spew("$home/rules.yml", slurp("$dir/rules.yml"));

my $pid = child(sub {
    open STDOUT, '>', "$home/out";
    open STDERR, '>&', \*STDOUT;
    exec 'prometheus', "--config.file=$home/prometheus.yml", "--storage.tsdb.path=$home/data",
         "--web.listen-address=127.0.0.1:$port" or POSIX::_exit(127);
});

my $http = HTTP::Tiny->new(timeout => patience());

my $conflict = 'nginx_idempotency_requests_total{result="conflict"}';

ok(until_true { value($conflict) eq '1' }, 'Prometheus reads the metrics') or diag(slurp("$home/out"));
is(value('nginx_idempotency_requests_total{result="replayed"}'), 1, 'as they are');
is(value('nginx_idempotency_dry_run_requests_total{result="conflict"}'), 1, 'and those of a dry run');
is(value('count(ALERTS) or vector(0)'), 0, 'no alert');

# what stands behind a zone is not there, nor does anybody know of an hour ago yet
my $later = qr/store_|undelivered|zone_full|zone_growth/;

for (@asked) {
    my ($title, $expr) = @$_;

    # ten rates or more, whenever there are two scrapes
    $expr =~ s/\$__rate_interval/5m/g;
    $expr =~ s/"\$\w+"/".*"/g;

    my $answer = until_true {
        $n->post($_, key => "more-$expr") for qw(/ /dry);

        my $a = query($expr);
        $a->{status} ne 'success' || @{ $a->{data}{result} } || $expr =~ $later ? $a : 0;
    } || {};

    is($answer->{status}, 'success', "$title: $expr") or diag($answer->{error} // 'nothing');
}

kill TERM => $pid;
waitpid $pid, 0;
done_testing();


sub query {
    my ($expr) = @_;
    my $r = $http->post_form("http://127.0.0.1:$port/api/v1/query", { query => $expr });

    return eval { decode_json($r->{content}) } || { status => $r->{content} };
}

sub value {
    my $a = query(@_);

    return eval { $a->{data}{result}[0]{value}[1] } // '';
}
