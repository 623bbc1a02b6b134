#!/usr/bin/perl

# util/demo: what it shows is true, it notices when it is not, and nothing of it
# is left afterwards. Also as a user who is not root.

# Not in util/test --quick: it takes its time.

use strict;
use warnings;

use utf8;

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use File::Copy qw(copy);
use File::Temp ();
use FindBin;
use lib "$FindBin::Bin/browser", "$FindBin::Bin/lib";

use Browser;
use Commands qw(slurp spew until_true);
use HTTP::Tiny;
use Machine ();
use POSIX qw(setpgid);
use Test::More;

my $root = dirname(dirname(abs_path(__FILE__)));
my $tmp = File::Temp->newdir('idempotency-demo-XXXXXX', TMPDIR => 1);
my @running;

$SIG{$_} = sub { exit 1 } for qw(INT TERM HUP);

chmod 0755, $tmp;

# the demo's directories come here, so that leftovers show
$ENV{TMPDIR} = "$tmp/tmp";
mkdir $ENV{TMPDIR};
chmod 01777, $ENV{TMPDIR};


# --- two nginx, one Redis ------------------------------------------------------

{
    my ($status, $out) = run("$root/util/demo", '--redis', '--once');

    is($status, 0, '--redis: exit status 0') or diag($out);

    like($out, qr/^ \s+ first\ nginx     \s+ 201,\ order\ (\w+) \s+ 201,\ order\ (\w+) \n
                    \s+ second\ nginx    \s+ 201,\ order\ (?!\1)\w+
                                         \s+ 201,\ order\ \2,\ REPLAYED \n
                    \s+ orders\ executed \s+ 2 \s+ 1 \n/mx,
         '... executed twice unprotected, once protected, replayed by the other nginx');
}


# --- the demo as it is -------------------------------------------------------

{
    my ($status, $out) = run("$root/util/demo", '--once');

    is($status, 0, '--once: exit status 0') or diag($out);

    like($out, qr/^ \s+ first\ answer    \s+ 201,\ order\ 1 \s+ 201,\ order\ 1 \n
                    \s+ second\ answer   \s+ 201,\ order\ 2
                                         \s+ 201,\ order\ 1,\ REPLAYED \n
                    \s+ orders\ executed \s+ 2 \s+ 1 \n/mx,
         'one after the other: executed twice unprotected, once protected');

    my ($at_once) = $out =~ /Both at once\n(.*?)\n\n/s;

    like($at_once // '', qr/orders\ executed \s+ 2 \s+ 1$/x,
         'both at once: executed twice unprotected, once protected');
    is(() = ($at_once // '') =~ /201, order 2, REPLAYED$/mg, 1,
       'both at once: one of the two answers is a replay');

    like($out, qr/^ \s+ answer\ before\ it \s+ 201,\ order\ 5 \s+ 201,\ order\ 3 \n
                    \s+ answer\ after\ it  \s+ 201,\ order\ 6
                                         \s+ 201,\ order\ 3,\ REPLAYED \n
                    \s+ orders\ executed  \s+ 2 \s+ 1 \n/mx,
         'restarted in between: executed twice unprotected, once protected');

    like($out, qr/^unprotected: 2 orders; protected: 1 order, second answer REPLAYED$/m,
         'the difference in one line');
    like($out, qr/REPLAYED\n\z/, 'which is the last');
    is(leftovers(), '', '--once leaves nothing behind');
}


# --- until Ctrl-C ------------------------------------------------------------

{
    local $ENV{SSH_CONNECTION} = '192.0.2.1 50000 192.0.2.2 2222';
    my $demo = start("$root/util/demo");
    my $out = read_until($demo, qr/^What nginx decides/m);

    my ($url, $port) = $out =~ m{^    (http://127\.0\.0\.1:(\d+))/$}m;
    ok($url, 'names its address') or BAIL_OUT($out);
    like($out, qr/^    ssh -p 2222 -L $port:127\.0\.0\.1:$port \S+\@192\.0\.2\.2$/m,
         'and how to get there from where one came from by SSH');

    my ($taken, $said) = run("$root/util/demo", '--once', '--port', $port);
    is($taken, 1, 'a port that is taken: exit status 1');
    like($said, qr/^util\/demo: port $port is taken$/m, 'and it says so');

    my $http = HTTP::Tiny->new(max_redirect => 0, timeout => 120);

    for my $shop (qw(unprotected protected)) {
        my $page = $http->get("$url/$shop/");

        is($page->{status}, 200, "$shop: the page is there");
        like($page->{content}, qr{<td>1 book <small>from the terminal</small><td>19\.00},
             "$shop: and lists what was executed, and by whom");

        my ($action) = $page->{content}
                       =~ m{<form method="post" action="(/$shop/orders\?[^"]+)">};

        my @answers = map {
            $http->post_form("$url$action", { item => 'mug', quantity => 1 })
        } 1 .. 2;

        my @order = map { $_->{headers}{location} =~ /#order-(\d+)$/ } @answers;

        is("$_->{status}", 303, "$shop: the form is answered with a redirect") for @answers;
        is($order[1] - $order[0], $shop eq 'protected' ? 0 : 1,
           "$shop: its second submit is " . ($shop eq 'protected' ? 'the same' : 'another')
           . ' order');

        # another order with that page's key
        $http->post_form("$url$action", { item => 'poster', quantity => 9 });

        my @rows = $http->get("$url/$shop/")->{content} =~ /<tr id="order-(.*)/g;

        is_deeply([map { /^(\d+)/ } @rows], [reverse 1 .. @rows], "$shop: the newest is the first");
        is(join(' ', map { /^\d+" class="again".*>1 mug, again!</ ? 'again' : 'once' } @rows[0 .. 1]),
           $shop eq 'protected' ? 'once once' : 'once again',
           "$shop: what has the same key and is something else is no repetition");
        unlike($rows[0], qr/terminal/, "$shop: the visitor's is not the terminal's");
    }

    in_a_browser($url) if grep { -x "$_/chromium" } split /:/, $ENV{PATH};

    # the commands that it prints, as they are printed
    my ($once, $other) = map { s/\\\n//r }
        $out =~ /^    (curl -i \S+ -H '[^']+' \\\n.*)$/mg;

    like(`$once 2>/dev/null`, qr/^HTTP\/1.1 201 /, 'the printed command orders');
    like(`$once 2>/dev/null`, qr/^Idempotent-Replayed: true\r$/mi, 'and is replayed');
    like(`$other 2>/dev/null`, qr/^HTTP\/1.1 409 /, 'the key is refused for something else');

    $out .= read_until($demo, qr/POST \S+  409 .* idempotency_status=CONFLICT$/m);
    like($out, qr/POST \S+  201 .* idempotency_status=NEW$/m,
         'and what nginx decided was shown meanwhile');

    kill INT => -$demo->{pid};
    my ($status) = finish($demo);

    is($status, 0, 'Ctrl-C: exit status 0');
    is(leftovers(), '', 'Ctrl-C leaves nothing behind');
    is($http->get("$url/")->{status}, 599, 'nor anybody at its port');
}


# --- killed ------------------------------------------------------------------

{
    my $demo = start("$root/util/demo");
    my ($url) = read_until($demo, qr/^What nginx decides/m)
                =~ m{^    (http://127\.0\.0\.1:\d+)/$}m;
    my $http = HTTP::Tiny->new(timeout => 120);

    is($http->get("$url/")->{status}, 200, 'it runs');

    kill KILL => $demo->{pid};
    finish($demo);

    ok(until_true { $http->get("$url/")->{status} == 599 },
       'killed, nginx ends with it');

    system 'rm', '-rf', glob "$ENV{TMPDIR}/*";
}


# --- it would notice ---------------------------------------------------------

my $module = $ENV{IDEMPOTENCY_MODULE}
             || ($ENV{BUILD_DIR} || "$root/build") . '/ngx_http_idempotency_module.so';

my %wrong = (
    'the protected shop is not protected' => sub { s/^ *idempotency zone=orders;\n//m },
    'the unprotected shop is protected' =>
        sub { s/(location \/unprotected\/ \{)/$1 idempotency zone=orders;/ },
    'nothing is remembered' => sub { s/ state=orders\.db// },
    'the key is not seen' => sub { s/\$http_idempotency_key/\$http_x_other/ },
);

# all at once
$_ = start(other_demo($_), '--once') for values %wrong;

for my $name (sort keys %wrong) {
    my ($status, $out) = finish($wrong{$name});

    is($status, 1, "$name: exit status 1") or diag($out);
    unlike($out, qr/^unprotected: 2 orders; protected: 1 order/m, "$name: says nothing else");
}

is(leftovers(), '', 'none of them leaves anything behind');


# --- as somebody else --------------------------------------------------------

{
    my @nobody = $> == 0
                 ? ('setpriv', '--reuid', scalar getpwnam('nobody'),
                    '--regid', (getpwnam('nobody'))[3], '--clear-groups', '--')
                 : ();

    my ($status, $out) = run(@nobody, other_demo(sub { 1 }), '--once');

    is($status, 0, 'not as root: exit status 0') or diag($out);
    is(leftovers(), '', 'not as root: leaves nothing behind');

    # a TMPDIR that is root's alone, as some machines give to root
    local $ENV{TMPDIR} = "$tmp/private";
    mkdir $ENV{TMPDIR}, 0700;

    ($status, $out) = run("$root/util/demo", '--once');

    is($status, 0, 'private TMPDIR: exit status 0') or diag($out);
    is(leftovers(), '', 'private TMPDIR: leaves nothing behind');
}


{
    my $port = Machine::free_port();
    my $demo = start("$root/util/demo", '--port', $port);

    read_until($demo, qr{^    http://127\.0\.0\.1:$port/$}m);
    pass('--port: there it is');
    kill INT => -$demo->{pid};
    finish($demo);
}


for my $arguments ('--twice', '--port', '--port x', '--once --port 0') {
    my ($status, $out) = run("$root/util/demo", split / /, $arguments);

    is($status, 1, "$arguments: exit status 1");
    like($out, qr/usage: util\/demo \[--once\] \[--port N \| --redis\]/, "$arguments: usage");
}


done_testing();


# --- the page ----------------------------------------------------------------

sub in_a_browser {
    my ($url) = @_;
    my $answers = 'document.querySelector("[data-shop=protected] .answers")';

    # its directory is none of the demo's
    mkdir "$tmp/browser";
    local $ENV{TMPDIR} = "$tmp/browser";
    my $browser = Browser->new("$tmp/browser", screenshots => $ENV{BROWSER_SCREENSHOTS});

    $browser->go("$url/");
    $browser->wait_for_page('Double-click in both shops');

    my $key = $browser->js('key');

    $browser->click('#both');
    $browser->wait_for("${answers}.innerText.includes('REPLAYED')", 'replay');
    $browser->wait_for('document.querySelector("[data-shop=unprotected] .again")', 'double');
    $browser->screenshot('demo');

    # the same key, another order
    $browser->js('document.querySelector("[data-shop=protected] form").item.value = "poster", 0');
    $browser->click('[data-shop=protected] form button');

    my $said = $browser->wait_for("${answers}.querySelector('button')
                                   && ${answers}.firstChild.innerText", 'refusal');

    like($said, qr/^409 .* Use a new key for a new request\. What differs: body\./s,
         'a refusal is the first answer, and says why');
    $browser->screenshot('demo-refused');
    $browser->phone(1);

    is($browser->js('document.documentElement.scrollWidth'), 360, 'on a phone nothing sticks out');
    is($browser->js('new Set(Array.from(document.querySelectorAll("section"),
                                        section => section.getBoundingClientRect().y)).size'),
       1, 'on a phone the shops are side by side');
    $browser->screenshot('demo-phone');
    $browser->phone(0);

    $browser->click('[data-shop=protected] .answers button');
    $browser->wait_for("document.readyState === 'complete' && key !== '$key'", 'new key');
    is($browser->js('document.querySelector("[data-shop=protected] form").item.value'), 'poster',
       'it offers a new order, of the same');
    $browser->click('[data-shop=protected] form button');
    like($browser->wait_for("${answers}.innerText.match(/^20.*/)?.[0]", 'order'), qr/^201 · order/,
         'which is taken');

    # what operators see
    $browser->go("$url/idempotency/");
    like($browser->wait_for('(document.getElementById("name") || {}).textContent', 'page of the zone'),
         qr/^Zone orders$/, "the operators' page");
    cmp_ok($browser->js('[].find.call(document.querySelectorAll("#results tr"),
                         tr => tr.firstChild.textContent.startsWith("replayed")).children[2].textContent'),
           '>=', 1, 'has counted replays');
}


# --- helpers -----------------------------------------------------------------

# other_demo(CHANGE): a demo with the same module, whose configuration went
# through CHANGE, in a tree that everybody may read
sub other_demo {
    my ($change) = @_;
    my $tree = File::Temp::tempdir(DIR => $tmp);

    mkdir "$tree/util";
    mkdir "$tree/util/demo.d";

    for (qw(demo common.sh demo.d/app.php demo.d/page.php demo.d/nginx.conf.in)) {
        copy("$root/util/$_", "$tree/util/$_") or die "$_: $!";
    }

    copy($module, "$tree/module.so") or die "$module: $!";

    my $conf = "$tree/util/demo.d/nginx.conf.in";
    local $_ = slurp($conf);
    $change->() or die 'nothing changed';
    spew($conf, $_);

    system 'chmod', '-R', 'a+rX', $tree;

    return ('env', "IDEMPOTENCY_MODULE=$tree/module.so", 'bash', "$tree/util/demo");
}


# start(COMMAND): in a process group of its own, as a terminal's shell does it
sub start {
    my @command = @_;

    pipe my $read, my $write or die $!;
    my $pid = fork // die $!;

    if ($pid == 0) {
        setpgid(0, 0);
        open STDIN, '<', '/dev/null';
        open STDOUT, '>&', $write;
        open STDERR, '>&', $write;
        exec { $command[0] } @command or POSIX::_exit(127);
    }

    close $write;
    setpgid($pid, $pid);
    push @running, $pid;
    return { pid => $pid, out => $read };
}


sub read_until {
    my ($demo, $re) = @_;
    my $out = '';

    local $SIG{ALRM} = sub { die "no $re in: $out" };
    alarm 600;

    while ($out !~ $re) {
        sysread $demo->{out}, $out, 4096, length $out
            or die "ended without $re: $out";
    }

    alarm 0;
    return $out;
}


# nothing outlives the test
END { local $?; for (@running) { kill TERM => -$_; waitpid $_, 0 } }


# finish(DEMO): (exit status, output), once it and all that writes for it is gone
sub finish {
    my ($demo) = @_;

    local $SIG{ALRM} = sub { kill KILL => -$demo->{pid}; die 'does not end' };
    alarm 600;

    my $out = do { local $/; readline $demo->{out} };
    waitpid $demo->{pid}, 0;

    alarm 0;
    @running = grep { $_ != $demo->{pid} } @running;
    return ($? & 127 ? "signal $?" : $? >> 8, $out // '');
}


sub run { return finish(start(@_)) }


sub leftovers {
    return join ' ', glob "$ENV{TMPDIR}/* $ENV{TMPDIR}/.[!.]*";
}
