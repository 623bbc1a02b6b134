#!/usr/bin/perl

# The documents: links lead somewhere, each directive and variable of the module
# has its entry and nothing else has, and what looks like a configuration is one.

use Digest::SHA qw(sha256_hex);
use File::Basename qw(dirname);
use lib 't/lib';
use Idempotency;
use Pages;

my @pages = pages();
my %page = map { $_ => text($_) } @pages;

# the recipes' configurations are run by recipes.t
my @described = grep { m{^(?:README\.md|docs/[^/]+\.md)$} } @pages;

links();
directives();
variables();
names();
log_lines();
configurations();
quotas();
sentences();
rests();
pictures();

the_map();

is(qx($^X util/mutate -l 2>&1 >/dev/null), '', 'each edit of t/mutations finds its place');

cmp_ok(scalar(split /\n/, $page{'ARCHITECTURE.md'}), '<=', 200, 'ARCHITECTURE.md is short');
cmp_ok(scalar(split /\n/, $page{'README.md'}), '<=', 150, 'README.md is short');

done_testing();


# --- the map of the source -----------------------------------------------------

# Each file says what it is, and no room is missing in ARCHITECTURE.md.

sub the_map {
    my ($room, %silent, %unknown);

    for (split /\n/, `perl $Pages::root/util/map`) {
        $room = $1, next if m{^(\S+)/$};
        $silent{$1} = 1 if /^  (\S+) +\d+  (?!\S.{15})/;
        $unknown{$room} = 1 if $room ne 'src' && $page{'ARCHITECTURE.md'} !~ m{`$room/};
    }

    ok($room, 'util/map has rooms');
    is(join(' ', sort keys %silent), '', '... in which each file says what lives there');
    is(join(' ', sort keys %unknown), '', '... and ARCHITECTURE.md has them');
}


# --- what SECURITY.md says -------------------------------------------------------

# Each sentence names the test that holds it, by words that stand there.

sub sentences {
    my @named = text('SECURITY.md') =~ /\((t\/[\w\/.]+): ([^)]+)\)/g;
    my (@wrong, $n);

    while (my ($file, $words) = splice @named, 0, 2) {
        open my $f, '<', "$Pages::root/$file" or do { push @wrong, $file; next };
        local $/;
        my $there = readline $f;

        $words =~ s/\s+/ /g;
        push @wrong, "$file: $words" if index($there, $words) < 0;
        $n++;
    }

    is("@wrong", '', 'SECURITY.md: the tests that it names are there');
    cmp_ok($n, '>', 25, '... and it names some');
}


# --- what docs/guarantees.md rests on ----------------------------------------------

# Each of its sentences and rows has a row in docs/internals/tests.md, with the
# tests that hold it.

sub rests {
    my (@claims, @wrong);

    for (qw(Guarantees), 'What happens if', 'Which outcome is recorded', 'What holds where') {
        my $section = section('docs/guarantees.md', $_) =~ s/\[([^]]+)\]\([^)]+\)/$1/gr;

        push @claims, $_ eq 'Guarantees' ? $section =~ /^- (.+)/mg
                      : map({ s/ \| /: /r } $section =~ /^\| (\d \| [^|]+|(?!… happens|Trouble)[^|]+?) \|/mg);
    }

    for my $row (section('docs/internals/tests.md', 'What rests on what') =~ /^\| (.+) \|$/mg) {
        my ($claim) = split / \| /, $row;
        my @files = $row =~ /`(\w+\.(?:t|c|pml))`/g;

        next if $row =~ /\| (?:Models|The case itself)/;
        push @wrong, $claim unless @files && @claims && index(shift @claims, $claim) == 0;
        push @wrong, grep { my $file = $_; !grep { -f "$Pages::root/$_/$file" } qw(t t/unit model) } @files;
    }

    is(join("\n", @wrong, @claims), '', 'docs/guarantees.md: each claim has its tests, which are there');
}


# --- links -------------------------------------------------------------------

sub links {
    my %anchors = map { $_ => anchors($_) } @pages;

    for my $page (@pages) {
        my @broken;

        for my $link (prose($page) =~ /\]\(([^)\s]+)\)/g) {
            next if $link =~ /^\w+:/;

            my ($path, $anchor) = split /#/, $link, 2;
            my $target = $path eq '' ? $page : resolve(dirname($page), $path);

            push @broken, $link
                if !-e "$Pages::root/$target"
                   || defined $anchor && !($anchors{$target} || {})->{$anchor};
        }

        is("@broken", '', "$page: its links lead somewhere");
    }

    my @runbooks = text('examples/observability/rules.yml') =~ /^ +runbook_url: '(.*)'$/mg;
    my $alerts = () = text('examples/observability/rules.yml') =~ /^ +- alert: /mg;

    is(join(' ', grep { my ($page, $anchor) = split /#/; !$anchors{$page}{$anchor} } @runbooks), '',
       'the alerts lead to their pages');
    is(@runbooks, $alerts, '... each of them');

    # nothing is to be found by chance only
    my %linked;

    for my $page (@pages) {
        for (prose($page) =~ /\]\(([^)\s#]+)/g) {
            $linked{resolve(dirname($page), $_)} = 1 unless /^\w+:/;
        }
    }

    is(join(' ', grep { !$linked{$_} && $_ ne 'README.md' } @pages), '',
       'each page is linked from another one');
}


# The anchors that GitHub gives to the headings of a page.

sub anchors {
    my ($page) = @_;

    my (%anchors, %seen);

    for my $heading (prose($page) =~ /^#+ (.*)$/mg) {
        (my $slug = lc $heading) =~ s/\[([^\]]*)\]\([^)]*\)/$1/g;
        utf8::decode($slug);
        $slug =~ s/[^\w\- ]//g;
        $slug =~ tr/ /-/;

        my $n = $seen{$slug}++;
        $anchors{$n ? "$slug-$n" : $slug} = 1;
    }

    return \%anchors;
}


# A page without its blocks, indented ones as well, and without `code`.

sub prose {
    my ($page) = @_;

    (my $text = $page{$page}) =~ s/^```.*?^```$//msg;
    $text =~ s/^(?: {4}|\t).*$//mg;
    $text =~ s/^(#+ .*)$/$1 =~ tr{`}{}dr/meg;
    $text =~ s/`[^`\n]*`/code/g;

    return $text;
}


sub resolve {
    my @path;

    for (split m{/}, join '/', @_) {
        pop @path, next if $_ eq '..';
        push @path, $_ unless $_ eq '.';
    }

    return join '/', @path;
}


# --- directives and variables ------------------------------------------------

sub directives {
    my %registered = map { $_->[0] => $_->[1] } table('ngx_command_t', 'NGX_HTTP[\w|\s]*');
    my $page = $page{'docs/directives.md'};
    my ($index, @entries) = split /^### /m, $page;

    is_deeply([map { /^(\S+)/ } @entries], [sort keys %registered],
              'each directive has its entry, in the order of the alphabet');
    is_deeply([sort $index =~ /\[(idempotency\w*)\]/g], [sort keys %registered],
              'and stands once in the index');

    for my $entry (@entries) {
        my ($name) = $entry =~ /\A(\S+)\n/;
        my %form = $entry =~ /^    (Syntax|Default|Context): +(.*)$/mg;

        like($form{Syntax}, qr/^\Q$name\E(?: .*)?(?:;| \{ \.\.\. \})$/, "$name: its form");
        like($form{Default}, qr/^(?:\Q$name\E .|—|the )/, "$name: its default");

        my $flags = $registered{$name} // '';
        my @in = $flags =~ /NGX_HTTP_IDEMPOTENCY_CONF/ ? qw(http server location)
               : (('http') x !!($flags =~ /HTTP_MAIN_CONF/),
                  ('server') x !!($flags =~ /HTTP_SRV_CONF/),
                  ('location') x !!($flags =~ /HTTP_LOC_CONF/));

        is($form{Context}, join(', ', @in), "$name: its context");
    }
}


sub variables {
    my @registered = map { $_->[0] =~ s/_$/_NAME/r }
                     table('variable_t', '');

    is_deeply([sort $page{'docs/variables.md'} =~ /^\| `\$(\w+)` \|/mg], [sort @registered],
              'each variable has its entry');
}


# What the module registers: ([name, flags], ...) of all tables of a type.

sub table {
    my ($type, $flags) = @_;

    my @found;

    for my $file (glob("$Pages::root/src/{,*/,*/*/}*.c")) {
        my $source = text($file =~ s{^\Q$Pages::root\E/}{}r);

        while ($source =~ /^static $type\s+\w+\[\] = \{(.*?)^\};/msg) {
            my $table = $1;

            # a directive() stands on all three levels, and names its arguments only
            while ($table =~ /(?:\{ ngx_string|(directive))\("(idempotency\w*)"\)?,\s*((?(1)\w+|$flags))/g) {
                push @found, [$2, $1 ? "NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_$3"
                                     : $3];
            }
        }
    }

    die "no $type" unless @found;

    return @found;
}


# Nothing is described that isn't there.

sub names {
    my %known = map { $_->[0] => 1 } table('ngx_command_t', 'NGX_HTTP[\w|\s]*');
    my @variables = map { $_->[0] } table('variable_t', '');

    # others' names: Stripe's errors, and the Agentic Commerce Protocol's
    $known{$_} = 1 for qw(idempotency_error idempotency_key_in_use idempotency_conflict);

    for my $page (@pages) {
        my ($text, %unknown) = ($page{$page} =~ s/\]\([^)\s]*\)//gr);

        while ($text =~ /(?<![\w\/])(\$?)(idempotency_\w+)/g) {
            my ($variable, $name) = ($1, $2);

            $unknown{"$variable$name"} = 1
                unless $variable ? grep({ $name eq $_ || /_$/ && $name =~ /^\Q$_/ } @variables)
                                 : $known{$name};
        }

        is(join(' ', sort keys %unknown), '', "$page: names what is there");
    }
}


# --- the log -------------------------------------------------------------------

# Each line that the module writes to the error log has a row of the table, by
# what stands before its first comma, and each row is of such a line.

sub log_lines {
    my @rows = map { my ($level, $text) = @$_; $text =~ s/…/x/g; [$level, $text] }
               map { /^\| (\w+) \| ([^|]+?) \|/ ? [$1, $2] : () }
               grep { !/^\| Level / } split /\n/, section('docs/operation.md', 'The log');
    my (%used, @unknown);

    for my $line (logged()) {
        my ($level, $begin) = @$line;
        my @found = grep { ($level eq '' || $rows[$_][0] eq $level) && $rows[$_][1] =~ $begin }
                    0 .. $#rows;

        push @unknown, "$level $begin" unless @found;
        @used{@found} = ();
    }

    is(join("\n", @unknown), '', 'each line of the log is explained');
    is(join("\n", map { $rows[$_][1] } grep { !exists $used{$_} } 0 .. $#rows), '',
       'and no other');
}


# What is logged: ([level, pattern of what it begins with], ...), but what stops
# nginx from starting, which explains itself. No level: the one that is configured.

sub logged {
    my @logged;
    my %level = (ERR => 'error');

    for my $file (glob "$Pages::root/src/{,*/,*/*/}*.c") {
        my $source = text($file =~ s{^\Q$Pages::root\E/}{}r);

        while ($source =~ /(?:ngx_log_error|ngx_http_idempotency_log)\((\S+),[^"]*"((?:[^"\\]|\\.|"\s*")*)"/mg) {
            my ($level, $format) = ($1, $2);

            next if $level eq 'NGX_LOG_EMERG';

            $level = $level =~ /^NGX_LOG_(\w+)/ ? $level{$1} // lc $1 : '';
            $format =~ s/"\s*"//g;
            $format =~ s/^(?:idempotency)?:? //;
            next if $format =~ /^idempotency%\*s/;      # of log_line
            $format =~ s/[,:;].*//s;
            $format = join '.*', map { quotemeta } split /(?:\\")?%[0-9*]*\w+(?:\\")?/, $format, -1;
            push @logged, [$level, qr/^$format/];
        }
    }

    die 'no log lines' unless @logged > 10;

    return @logged;
}


# --- pictures --------------------------------------------------------------------

# Each one names what it is a picture of, by its SHA-256: util/pictures makes them.

sub pictures {
    my @shown = prose('README.md') =~ /!\[[^\]]+\]\(([^)]+\.png)\)/g;

    is_deeply(\@shown, [qw(docs/images/demo.png docs/images/page.png)], 'README shows the demo and the page');

    for my $picture (@shown) {
        open my $f, '<:raw', "$Pages::root/$picture" or die "$picture: $!";
        my ($of, $digest) = do { local $/; readline $f } =~ /tEXtSource\0(\S+) (\w{64})/;

        open $f, '<:raw', "$Pages::root/$of" or die "$of: $!";
        is($digest, sha256_hex(do { local $/; readline $f }), "$picture is what $of shows now: run util/pictures");
    }
}


# --- configurations ----------------------------------------------------------

# nginx -t knows all that these pages show. What is less than a server stands in
# one, with what it leaves to the reader.

sub configurations {
    for my $page (@described) {
        for my $block (blocks($page, 'nginx')) {
            my $text = $block->{text};
            my %o = $text =~ /^server /m ? (http => $text, zone => 0) : (server => $text);

            my ($ok, $said) = config_test(%o);

            ok($ok, "$page, $block->{heading}: nginx -t") or diag($said);
        }
    }
}


# Without a quota one address fills a zone in seconds: so whatever protects
# requests, and may be copied, has one.

sub quotas {
    my %text = (map({ ("examples/$_" => text("examples/$_")) }
                   map { m{([^/]+)$} } glob "$Pages::root/examples/*.conf"),
               map { my $page = $_; my $n = 0; map { ("$page, " . ++$n => $_->{text}) } blocks($page, 'nginx') }
               grep { m{^(?:README\.md|docs/forms\.md|docs/recipes/.*)$} } @pages);

    my @protects = grep { $text{$_} =~ /^\s*idempotency zone=/m } sort keys %text;

    cmp_ok(scalar @protects, '>', 20, 'there are examples and recipes');
    is(join(', ', grep { $text{$_} !~ /^\s*idempotency_quota \d+/m } @protects), '', 'each of them has a quota');
}
