package Pages;

# The documents, for tests that do what stands in them.
#
#    $Pages::root          the source tree
#    pages()               all *.md in it, as 'README.md', 'docs/directives.md', …
#    text(FILE)            one of them (or any file of the tree)
#    section(FILE, NAME)   what stands below that heading
#    blocks(FILE, 'nginx') its fenced blocks of that language, in their order, each
#                          { heading => the last one before it, text => … }
#    place(TEXT, %place)   a configuration with other addresses: those of %place,
#                          '127.0.0.1:8001' => …; dies if one isn't in it

use strict;
use warnings;

use Cwd qw(abs_path);
use Exporter qw(import);
use File::Basename qw(dirname);
use File::Find ();

our @EXPORT = qw(pages text section blocks place);
our $root = dirname(dirname(dirname(abs_path(__FILE__))));


sub pages {
    my @pages;

    File::Find::find({
        no_chdir => 1,
        preprocess => sub { grep { !/^(?:\.git|build.*)$/ } @_ },
        wanted => sub { push @pages, s{^\Q$root\E/}{}r if /\.md$/ },
    }, $root);

    return sort @pages;
}


sub text {
    my ($file) = @_;

    open my $f, '<', "$root/$file" or die "$file: $!\n";
    local $/;

    return scalar <$f>;
}


sub section {
    my ($file, $name) = @_;

    my ($level, $text) = text($file) =~ /^(#+) \Q$name\E\n(.*)/ms
        or die "$file has no \"$name\"\n";

    # headings only: a comment in a block begins with "#" as well
    my $inside = 0;
    my @lines;

    for my $line (split /^/, $text) {
        $inside = !$inside if $line =~ /^```/;
        last if !$inside && $line =~ /^#{1,${\length $level}} /;
        push @lines, $line;
    }

    return join '', @lines;
}


sub blocks {
    my ($file, $language) = @_;

    my ($heading, @blocks, $inside) = ('');

    for my $line (split /^/, text($file)) {
        if (defined $inside) {
            if ($line =~ /^```$/) {
                undef $inside;

            } elsif ($inside eq $language) {
                $blocks[-1]{text} .= $line;
            }

        } elsif ($line =~ /^```(\S*)$/) {
            $inside = $1;
            push @blocks, { heading => $heading, text => '' }
                if $inside eq $language;

        } elsif ($line =~ /^#+ (.*)/) {
            $heading = $1;
        }
    }

    return @blocks;
}


sub place {
    my ($text, %place) = @_;

    for my $address (sort keys %place) {
        $text =~ s/(?<![\w.:])\Q$address\E(?![\w.:])/$place{$address}/g
            or die "no $address in the configuration\n";
    }

    return $text;
}


1;
