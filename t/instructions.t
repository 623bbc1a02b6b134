#!/usr/bin/perl

# What a request costs is not to grow unseen: the instructions that a worker
# executes in the module, counted by callgrind. They are the same in each run, as
# long as nginx, the compiler and its flags are. Those in nginx, libc and libcrypto
# are left out: they are others elsewhere.

use lib 't/lib';
use Idempotency;

# By the nginx and what the compiler says of itself: instructions per request, of
# which 2 % more are let through. Who makes them fewer writes them down.

my %committed = (
    'nginx/1.22.1, GNU C17 12.2.0 -mtune=generic -march=x86-64 -g -g -O -O2 -O2'
    . ' -fstack-protector-strong -fPIC -fasynchronous-unwind-tables' => {
        'first execution' => 17296, 'replay' => 15499,
        'POST without a key' => 1179, 'GET' => 398,
    },
);

my $built = join ', ', Idempotency::server_version(),
                 slurp(module_path()) =~ /\0(GNU C[ -~]+)\0/ ? $1 : 'a compiler without a name';
my $expected = $committed{$built};

plan(skip_all => 'a store that answers late has a build of its own') if answers_late();
plan(skip_all => "no figures for $built") if !$expected;
plan(skip_all => 'no valgrind') if system('valgrind --version >/dev/null 2>&1');

my $counts = File::Temp->newdir('callgrind-XXXXXX', TMPDIR => 1);

# A request for the guard ends a count and begins the next one. What goes by the
# clock is not counted: timers, and what a claim does to set one.

my $mark = 'guard_handler';
my @by_the_clock = qw(log_timer_handler ngx_idempotency_worker_owns shm_expire_handler workers_poll_handler
                      workers_sign_handler);
my ($object) = module_path() =~ m{([^/]+)$};
my $symbols = slurp(module_path());

for my $name ($mark, @by_the_clock) {
    die "the module has no function $name any more\n" if $symbols !~ /\0$name\0/;
}

my $n = nginx(slowed => ['valgrind', '--tool=callgrind', '-q', '--vgdb=no',
                         "--callgrind-out-file=$counts/%p", "--dump-before=$mark",
                         map("--toggle-collect=$_", @by_the_clock), '--collect-atstart=yes'],
              log_level => 'warn', zone => 'idempotency_zone zone=z:16m; # memory alone',
              http => 'upstream kept { server $TEST_NGINX_BACKEND; keepalive 4; }', server => <<'EOC');
    keepalive_timeout 1h;
    location / {
        idempotency zone=z;
        proxy_pass http://kept/?size=350&noexec=1;
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_read_timeout 1h;
    }
    location /mark { idempotency_guard; }
EOC

# 500 bytes of JSON go up, 350 bytes come down

my $body = '{"order":"A-20417","customer":{"id":81244,"name":"Ada Example",'
         . '"email":"ada@example.com"},"currency":"EUR","items":[{"sku":"KB-104",'
         . '"title":"Keyboard, German layout","quantity":1,"price":"79.90"},'
         . '{"sku":"CB-USB-C2","title":"Cable USB-C, 2 m","quantity":3,'
         . '"price":"12.50"}],"ship_to":{"street":"Example Street 12",'
         . '"zip":"10115","city":"Berlin","country":"DE"},"payment":'
         . '{"method":"card","token":"tok_9f8e7d6c5b4a39281706"},"note":"';
$body .= 'n' x (498 - length $body) . '"}';

my ($worker) = $n->workers;
my $c = $n->connect;
my $marks = 0;
my $keys = 0;


sub ask {
    my ($method, $uri, @with) = @_;

    $c->send(message($method, $uri, @with));

    my $r = $c->response($method);
    die "$method $uri: status $r->{status}\n", $n->log if $r->{status} != 200;

    return $r;
}


sub post {
    my @key = @_ ? (key => sprintf '9f8e7d6c-93d1-4c1b-8a55-%012x', @_) : ();

    return ask('POST', '/', type => 'application/json', body => $body, @key);
}


# The instructions in the module of so many requests, by function.

sub count {
    my ($times, $code) = @_;

    ask('GET', '/mark');
    $code->() for 1 .. $times;
    ask('GET', '/mark');
    $marks += 2;

    # Each name is written out at its first mention, and is a number from then on.
    # Behind "calls=" stands the cost of what is called, which counts there.

    my (%name, %now, %count, $called);

    for (split /\n/, slurp("$counts/$worker.$marks")) {
        if (/^(c?)(ob|fn)=\((\d+)\)(?: (.*))?/) {
            $name{$2}{$3} = $4 if defined $4;
            $now{$2} = $name{$2}{$3} if !$1;

        } elsif (/^calls=/) {
            $called = 1;

        } elsif (/^[-+*\d]\S* (\d+)$/) {
            my $cost = $1;

            $count{$now{fn}} += $cost if !$called && $now{ob} =~ m{/\Q$object\E$};
            $called = 0;
        }
    }

    return \%count;
}


# what is done once only is done

post(++$keys) for 1 .. 10;
post($keys), post(), ask('GET', '/') for 1 .. 10;

my @cases = (
    ['first execution', sub { post(++$keys)->replayed and die 'a replay' }],
    ['replay', sub { post($keys)->replayed or die 'no replay' }],
    ['POST without a key', sub { post() }],
    ['GET', sub { ask('GET', '/') }],
);
my $nothing = count(0);

for (@cases) {
    my ($case, $code) = @$_;
    my $times = 100;

    my $count = count($times, $code);
    my %each = map { $_ => ($count->{$_} - ($nothing->{$_} // 0)) / $times } keys %$count;
    my $all = 0;

    $all += $_ for values %each;

    note("$case: $all, committed: $expected->{$case}");
    ok($all > 0 && $all <= 1.02 * $expected->{$case}, "$case: not more than 2 % above what is committed")
        or diag("$case: $all instructions instead of $expected->{$case}, most of them in\n",
                map { sprintf "%10.2f %s\n", $each{$_}, $_ } grep defined, (sort { $each{$b} <=> $each{$a} } keys %each)[0 .. 19]);
}

done_testing();
