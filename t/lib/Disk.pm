package Disk;

# A disk that hangs, fails or is slow while nginx runs, by a library (disk.c):
#
#    my $disk = Disk->new(FILES)      whose path contains that: "z.db"
#    outliving(env => $disk->env, main => $disk->main, ...)    main: for who is
#                                     started by USR2
#    $disk->set(KIND => HOW, ...)     kinds: open read write sync, all; how: hang,
#                                     stuck (and the files of who has ended stay
#                                     open), fail (EIO), full (ENOSPC), gone (ENOENT),
#                                     well, or for so many milliseconds longer
#    $disk->well                      all of them, as at first; and syncs take no time:
#                                     those of a busy machine may take longer than the
#                                     module waits for a store
#    $disk->hung                      how many calls hang now, with those who were
#                                     killed then: $disk->forget forgets them
#    Disk->instant                    one for all files, which stays well

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use File::Temp ();
use Idempotency ();

my @kinds = qw(open read write sync);
my %how = (slow => 's', well => '.', hang => 'h', stuck => 'k', fail => 'e', full => 'f', gone => 'n');

my ($library, $instant);


sub new {
    my ($class, $files) = @_;

    my $dir = $library //= build();
    my $self = bless { files => $files, library => $dir, how => { map { $_ => '.' } @kinds },
                       state => File::Temp->new(TEMPLATE => 'disk-XXXXXX', TMPDIR => 1) }, $class;

    # the workers write there how many hang
    chmod 0666, "$self->{state}";
    syswrite $self->{state}, '.' x 16 . pack 'i5', (0) x 5;

    return $self->well;
}


sub instant { return $instant //= Disk->new('/') }


sub build {
    my $dir = File::Temp->newdir('disk-XXXXXX', TMPDIR => 1);

    chmod 0755, $dir;

    my @cc = ($ENV{CC} // 'cc', qw(-O -shared -fPIC -o), "$dir/disk.so",
              dirname(abs_path(__FILE__)) . '/disk.c');

    system(@cc) == 0 or die "@cc\n";
    return $dir;
}


# a sanitizer would rather be the first one

sub env {
    my ($self) = @_;

    return { DISK => "$self->{state}", DISK_FILES => $self->{files},
             LD_PRELOAD => join(' ', grep defined, $ENV{LD_PRELOAD}, "$self->{library}/disk.so"),
             ASAN_OPTIONS => join ':', 'verify_asan_link_order=0', grep defined, $ENV{ASAN_OPTIONS} };
}


sub main { return "env DISK; env DISK_FILES; env LD_PRELOAD;\n" }


sub set {
    my ($self, %o) = @_;

    if (defined(my $all = delete $o{all})) {
        %o = (map({ $_ => $all } @kinds), %o);
    }

    for my $kind (keys %o) {
        my ($how, $i) = ($o{$kind}, grep { $kinds[$_] eq $kind } 0 .. $#kinds);

        if (!$how{$how}) {
            sysseek $self->{state}, 20 + 4 * $i, 0;
            syswrite $self->{state}, pack 'i', $how;
            $how = 'slow';
        }

        $self->{how}{$kind} = $how{$how};
    }

    sysseek $self->{state}, 0, 0;
    syswrite $self->{state}, join '', @{$self->{how}}{@kinds};

    return $self;
}


sub well { return $_[0]->set(all => 'well', sync => 0) }


sub hung {
    my ($self) = @_;

    sysseek $self->{state}, 16, 0;
    sysread $self->{state}, my $n, 4;
    return unpack 'i', $n;
}


# Who was killed while it hung is counted yet.

sub forget {
    my ($self) = @_;

    sysseek $self->{state}, 16, 0;
    syswrite $self->{state}, pack 'i', 0;
}


1;
